# Run by __main__.py in namespaces of its own: processes, mounts, and a network with nothing but loopback.
set -eu
ip link set lo up
mkdir -p "$SITE/run"

say() { printf '%s   %s\n' "$(date +%T)" "$1" >&2; }
die() { say "$1"; tail -n 20 "$SITE"/run/*.log >&2; exit 1; }

# The privileges of a container that drops all capabilities and gains none.
unprivileged() { # unprivileged UID:GID COMMAND...
  ids=$1; shift
  setpriv --reuid "${ids%:*}" --regid "${ids#*:}" --clear-groups --no-new-privs \
    --inh-caps=-all --bounding-set=-all "$@"
}

# mounted LIST ROOT: each line "source target ro|rw" of LIST below ROOT
mounted() {
  while read -r source target mode; do
    if [ -d "$source" ]; then mkdir -p "$2$target"; else mkdir -p "$(dirname "$2$target")"; : >>"$2$target"; fi
    mount --bind "$source" "$2$target"
    [ "$mode" = rw ] || mount -o remount,bind,ro "$2$target"
  done <"$1"
}

# ---- the broker: this machine's mosquitto sees the files where its container would ------------------
mkdir -p /mosquitto /etc/mosquitto
mount -t tmpfs tmpfs /mosquitto
mount -t tmpfs tmpfs /etc/mosquitto
mounted "$SITE/mounts.broker" ""
# shellcheck disable=SC2086  words are meant
unprivileged "$BROKER_UID_GID" $BROKER >"$SITE/run/broker.log" 2>&1 &
broker=$!

# ---- the daemon: the image's root, read-only, its volumes, its user ----------------------------------
mount --bind "$ROOT" "$ROOT"
printf '127.0.0.1 localhost broker\n' >"$ROOT/etc/hosts"
mounted "$SITE/mounts.edged" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs tmpfs "$ROOT/tmp"
chmod 1777 "$ROOT/tmp"
mount -o remount,bind,ro "$ROOT"

# chroot(2) needs a capability, so it comes before they are dropped: setpriv is the image's own.
# shellcheck disable=SC2086
inside() {
  chroot "$ROOT" /usr/bin/setpriv --reuid "${UID_GID%:*}" --regid "${UID_GID#*:}" --clear-groups --no-new-privs \
    --inh-caps=-all --bounding-set=-all /usr/bin/env -i -C "$FOLDER" $INSIDE "$@"
}
if inside touch /usr/written 2>/dev/null; then die "the root can be written"; fi
# shellcheck disable=SC2086
if inside $HEALTH >/dev/null; then die "healthy before it runs"; fi
# shellcheck disable=SC2086
inside $COMMAND >"$SITE/run/edged.log" 2>&1 &
wrapper=$!

# until_true SECONDS WHAT COMMAND...
until_true() {
  left=$1 what=$2; shift 2
  until "$@" >"$SITE/run/last" 2>&1; do
    left=$((left - 1))
    [ "$left" -gt 0 ] || { cat "$SITE/run/last" >&2; die "did not happen: $what"; }
    sleep 1
  done
  say "$what"
}

# shellcheck disable=SC2086
until_true 120 "the health check of the image says it is well" inside $HEALTH
say "$(cat "$SITE/run/last")"
# What is published before the first subscription nobody keeps.
until_true 60 "it is connected over TLS" grep -q mqtt_connected "$SITE/run/edged.log"
keys=$SITE/certificates
awk -v n="$SAMPLES" 'BEGIN { srand(1); for (i = 0; i < n; i++) { t = rand(); printf "{\"temp\": %f, \"vib\": {\"x\": %f, \"y\": %f}, \"state\": \"%s\"}\n", t, rand(), rand(), (t > 0.5 ? "worn" : "ok") } }' \
  >"$SITE/run/samples"
mosquitto_pub -h localhost -p 8884 --cafile "$keys/broker-ca.pem" --cert "$keys/operators/sensors.pem" \
  --key "$keys/operators/sensors.key" -q 1 -t sensors/press-7/a -l <"$SITE/run/samples"
say "$SAMPLES samples were published over TLS"

status() { inside edged status /etc/edged/edged.yaml --json >"$SITE/run/status"; }
swapped() {
  status && python3 - "$SITE/run/status" "$SAMPLES" <<'P'
import json, sys
told = json.load(open(sys.argv[1]))
sys.exit(not (told["samples"] == int(sys.argv[2]) and told["model"]["version"] >= 2 and told["training"]["runs"]))
P
}
until_true 120 "all samples are stored, a model was trained and swapped" swapped
python3 -c 'import json, sys; told = json.load(open(sys.argv[1]))
print("          ", {key: told[key] for key in ("state", "samples", "engine")}, "model", told["model"]["version"], "runs", told["training"]["runs"])' "$SITE/run/status" >&2
# shellcheck disable=SC2086
inside $HEALTH >/dev/null || die "not healthy after a swap"

# ---- the end: SIGTERM, as a container is stopped ------------------------------------------------------
daemon=$(pgrep -f 'edged.daemon /etc/edged' | head -n 1)
began=$(date +%s)
kill -TERM "$daemon"
wait "$wrapper" || die "it ended with exit code $?"
say "stopped in good order within $(($(date +%s) - began)) s"
# shellcheck disable=SC2086
if inside $HEALTH >"$SITE/run/last"; then die "healthy after its end"; fi
say "$(cat "$SITE/run/last")"
kill "$broker"
