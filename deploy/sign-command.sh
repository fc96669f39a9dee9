#!/usr/bin/env bash
# Prints a signed command, ready to be published, with openssl 3 alone; docs/security.md says what is signed.
#
#   sign-command.sh KEY [ROOT/]DEVICE COMMAND ['{"field": value}']       the root (mqtt.root) is edged without
#   mosquitto_pub -t edged/press-7/request/wipe -m "$(sign-command.sh my.key press-7 wipe '{"confirm": "press-7"}')"
set -euo pipefail

[[ $# == 3 || $# == 4 ]] || { sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
key=$1 device=$2 command=$3 request=${4-}
[[ $device == */* ]] || device=edged/$device
request=${request:-'{}'}
[[ $request =~ ^[[:space:]]*\{(.*)\}[[:space:]]*$ ]] || { echo "sign-command.sh: not a JSON object: $request" >&2; exit 2; }
fields=${BASH_REMATCH[1]}
[[ $fields =~ [^[:space:]] ]] && fields+=,
head="{\"ts\":$(date +%s),\"transaction\":\"$(openssl rand -hex 16)\",$fields\"signature\":\""

message=$(mktemp)
trap 'rm -f "$message"' EXIT
printf 'edged-command-2\n%s\n%s\n%s\n%s"}' "${device%/*}" "${device##*/}" "$command" "$head" >"$message"
signature=$(openssl pkeyutl -sign -rawin -inkey "$key" -in "$message" | base64 -w 0)
printf '%s%s"}\n' "$head" "$signature"
