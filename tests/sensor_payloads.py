"""What sensors of well-known systems send, byte for byte as their documentation has it."""

from __future__ import annotations

PUMP = (
    b'{"temperature":21.3,"humidity":43.1,"vibration":false,"contact":true,"battery":97,"linkquality":120,'
    b'"state":"ON","action":null,"last_seen":"2026-11-22T10:00:00+00:00","update":{"state":"idle"}}'
)
PLUG = (
    b'{"Time":"2026-11-22T10:00:00","ENERGY":{"Total":3.185,"Power":12,"Factor":0.60,"Voltage":230,'
    b'"Current":0.087}}'
)
SHELLY = (
    b'{"id":0,"output":true,"apower":8.9,"voltage":237.5,"current":0.041,"temperature":{"tC":27.7,"tF":81.8}}'
)
NEURON = (
    b'{"node":"modbus","group":"g1","timestamp":1650006388943,"values":{"tag1":123},"errors":{"tag2":2014}}'
)
CHIRPSTACK = (
    b'{"deviceInfo":{"devEui":"70b3d57ed0000001"},"time":"2026-11-22T10:00:00.1+00:00",'
    b'"object":{"temp":21.3,"door":1}}'
)
TELEGRAF = b'{"fields":{"usage_idle":98.1},"name":"cpu","tags":{"host":"a"},"timestamp":1650006388}'
NEURON_TAGS = (
    b'{"tags":[{"name":"tag1","value":123},{"name":"tag2","error":2014}],"node":"modbus","group":"g1",'
    b'"timestamp":1650006388943}'
)
TELEGRAF_BATCH = (
    b'{"metrics":[' + TELEGRAF + b',{"fields":{"free":1000},"name":"mem","tags":{"host":"a"},'
    b'"timestamp":1650006388}]}'
)
LINES = b"cpu,host=a usage_idle=98.1,procs=120i,ok=t 1650006388000000000"

ROOM = "homeassistant/sensor/living_room"
HOUSE = [
    (f"{ROOM}_temperature/state", b"21.3"),
    (f"{ROOM}_humidity/state", b"unavailable"),
    ("homeassistant/binary_sensor/living_room_window/state", b"on"),
]
NO_READINGS = [
    ("zigbee2mqtt/bridge/devices", b'[{"ieee_address":"0x1"}]'),
    ("zigbee2mqtt/bridge/state", b'{"state":"online"}'),
    ("zigbee2mqtt/pump/availability", b'{"state":"online"}'),
    ("homeassistant/sensor/0x1/temperature/config", b'{"unit_of_measurement":"x","expire_after":60}'),
    (f"{ROOM}_temperature/friendly_name", b'"Living room"'),
    (f"{ROOM}_temperature/suggested_display_precision", b"1"),
    ("homeassistant/status", b"online"),
    ("tele/plug/LWT", b"Online"),
    ("tele/plug/STATE", b'{"UptimeSec":312,"Wifi":{"RSSI":70}}'),
    ("shellyplus1pm-a1/online", b"true"),
    ("edged/press-7/metrics", b'{"seq":3}'),
]
