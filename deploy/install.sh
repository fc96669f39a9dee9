#!/bin/sh
# Installs edged into /opt/edged as a service of systemd, on boards for which there is no Debian package.
# Run again to update or to mend: what is right already stays. From a checkout or a release archive:
#
#   deploy/install.sh [--wheel FILE] [--find-links FOLDER] [--constraints FILE] [--python PROGRAM]
#   deploy/install.sh --uninstall [--purge]
#
# Without --wheel the checkout itself is installed. --find-links names a folder of wheels for a board without
# a network, --constraints versions of the packages beside edged. --purge takes state, configuration, secrets
# and user along.
set -eu

HERE=$(cd "$(dirname "$0")/.." && pwd)
PREFIX=/opt/edged
UNITS=/etc/systemd/system
COMMAND=/usr/local/bin/edged
PYTHON=
WHEEL=$HERE
LINKS=
CONSTRAINTS=
ACTION=install
PURGE=no

say() { echo "install.sh: $*"; }
fail() {
    echo "install.sh: $*" >&2
    exit 1
}
wrong() {
    echo "install.sh: $* (see the top of this file)" >&2
    exit 2
}

fits() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' 2>/dev/null; }

find_python() {
    if [ -z "$PYTHON" ]; then
        for found in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
            if fits "$found"; then
                PYTHON=$found
                break
            fi
        done
    fi
    [ -n "$PYTHON" ] || fail "no Python 3.10 to 3.14 here: install one, or name it with --python"
    fits "$PYTHON" || fail "$PYTHON is no Python 3.10 to 3.14"
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$PYTHON makes no virtual environments: install its package, such as python3-venv"
}

managed() { [ -d /run/systemd/system ]; }

# Units of ours that run now, or are about to, one a line.
running() {
    systemctl list-units --plain --no-legend --state=active,activating,reloading \
        'edged.service' 'edged@*.service' | cut -d' ' -f1
}

stop_all() {
    managed || return 0
    RUNNING=$(running)
    # shellcheck disable=SC2086  # one word for each unit
    [ -z "$RUNNING" ] || systemctl stop $RUNNING
}

start_stopped() {
    # shellcheck disable=SC2086  # one word for each unit
    [ -z "$RUNNING" ] || systemctl start $RUNNING
}

# When this ends early: what ran goes on with what there is. An update that cannot be fetched changes nothing.
go_on() {
    [ -z "$RUNNING" ] || say "that failed: starting again what ran" >&2
    start_stopped
}

install_packages() {
    if [ -e "$PREFIX" ] && ! fits "$PREFIX/bin/python"; then
        rm -rf "$PREFIX" # of a Python that is gone
    fi
    "$PYTHON" -m venv "$PREFIX"
    set -- --disable-pip-version-check install --quiet --upgrade --only-binary=:all:
    [ -z "$LINKS" ] || set -- "$@" --no-index --find-links "$LINKS"
    [ -z "$CONSTRAINTS" ] || set -- "$@" --constraint "$CONSTRAINTS"
    "$PREFIX/bin/python" -m pip "$@" "${WHEEL}[codecs,sparkplug,signing,web,websockets]"
    # The same version again may be another build.
    "$PREFIX/bin/python" -m pip "$@" --force-reinstall --no-deps "$WHEEL"
    ln -sfn "$PREFIX/bin/edged" "$COMMAND"
}

install_user() {
    getent passwd edged >/dev/null && return 0
    if command -v systemd-sysusers >/dev/null; then
        systemd-sysusers "$HERE/systemd/edged.sysusers"
    else
        useradd --system --user-group --home-dir /var/lib/edged --no-create-home --shell /usr/sbin/nologin edged
    fi
}

# The configuration to begin with, on the state directory of the service: commands by hand read it, too.
template() {
    sed 's|^  dir: \./state .*|  dir: /var/lib/edged      # where everything is kept that must survive a power cut|' \
        "$HERE/configs/classifier.yaml"
}

install_units() {
    for unit in edged.service edged@.service edged.slice edged-train.slice; do
        install -D -m 0644 "$HERE/systemd/$unit" "$UNITS/$unit"
    done
    version=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
    for unit in edged.service edged@.service; do
        if [ "${version:-0}" -ge 254 ]; then
            install -D -m 0644 "$HERE/systemd/edged-backoff.conf" "$UNITS/$unit.d/backoff.conf"
        fi
    done
    install -d /etc/edged
    template >/etc/edged/edged.yaml.template
    chmod 0644 /etc/edged/edged.yaml.template
    systemctl enable --quiet edged.service
}

start_all() {
    managed || return 0
    systemctl daemon-reload
    # The unit's condition holds it back where there is no configuration.
    systemctl start edged.service
    start_stopped
}

do_install() {
    find_python
    trap go_on EXIT
    trap 'exit 130' INT TERM HUP
    stop_all
    install_packages
    install_user
    install_units
    trap - EXIT
    start_all
    say "$("$COMMAND" --version) is installed"
    [ -f /etc/edged/edged.yaml ] ||
        say "next: copy /etc/edged/edged.yaml.template to edged.yaml, edit it, systemctl start edged"
}

do_uninstall() {
    stop_all
    systemctl disable --quiet edged.service 2>/dev/null || true
    rm -f "$UNITS"/*.wants/edged@*.service # instances that were enabled
    for unit in edged.service edged@.service; do
        rm -f "$UNITS/$unit" "$UNITS/$unit.d/backoff.conf"
        rmdir "$UNITS/$unit.d" 2>/dev/null || true # a drop-in of somebody else's stays
    done
    rm -f "$UNITS/edged.slice" "$UNITS/edged-train.slice" "$COMMAND" /etc/edged/edged.yaml.template
    rm -rf "$PREFIX"
    rmdir /etc/edged 2>/dev/null || true
    ! managed || systemctl daemon-reload
    if [ "$PURGE" = yes ]; then
        rm -rf /var/lib/edged /var/lib/edged@* /etc/edged
        rm -f /etc/default/edged /etc/default/edged@* /etc/credstore/edged.mqtt-* /etc/credstore/edged@*.mqtt-*
        ! getent passwd edged >/dev/null || userdel edged
    fi
    say "edged is removed"
}

while [ $# -gt 0 ]; do
    case "$1" in
    --wheel | --find-links | --constraints | --python)
        [ $# -gt 1 ] || wrong "$1 needs a value"
        case "$1" in
        --wheel) WHEEL=$2 ;;
        --find-links) LINKS=$2 ;;
        --constraints) CONSTRAINTS=$2 ;;
        --python) PYTHON=$2 ;;
        esac
        shift
        ;;
    --uninstall) ACTION=uninstall ;;
    --purge) PURGE=yes ;;
    *) wrong "unknown argument $1" ;;
    esac
    shift
done

[ "$ACTION" = uninstall ] || [ "$PURGE" = no ] || wrong "--purge goes with --uninstall"
[ "$(id -u)" = 0 ] || fail "this needs root"
if dpkg-query -W -f '${db:Status-Status}' edged 2>/dev/null | grep -qx installed; then
    fail "the Debian package edged is installed: apt removes it"
fi
RUNNING=
"do_$ACTION"
