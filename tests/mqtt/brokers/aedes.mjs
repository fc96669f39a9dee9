// The broker aedes as a process: node aedes.mjs PORT, with its package below EDGED_BROKERS.
import { createServer } from 'node:net'
import { pathToFileURL } from 'node:url'

const entry = `${process.env.EDGED_BROKERS}/node_modules/aedes/aedes.js`
const { Aedes } = await import(pathToFileURL(entry))
const broker = await Aedes.createBroker()
createServer(broker.handle).listen(Number(process.argv[2]), '127.0.0.1')
