#!/usr/bin/env bash
# Certificates for the broker in edged.conf, with openssl alone. Everything lies in one directory.
#
#   certificates.sh DIR broker HOST...        the CAs, their lists, and the broker's own certificate
#   certificates.sh DIR device NAME...        devices; NAME is device.id
#   certificates.sh DIR operator NAME...      operator, viewer, fleet, homeassistant or sensors (operators.acl)
#   certificates.sh DIR revoke device NAME    it is let in no more, after a reload of the broker
#
# Each may be run again: what is there and still good for a month is left as it is, the rest is made anew.
# DAYS=n says how long new certificates are good for (1825). A CA's key must not stay on a device.
set -euo pipefail
umask 077
export LC_ALL=C

die() { echo "certificates.sh: $1" >&2; exit "${2:-1}"; }
usage() { sed -n '2,/^$/{/^#/!d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" | sed '/^set/,$d' >&2; exit 2; }

[[ $# -ge 3 ]] || usage
command -v openssl >/dev/null || die "openssl is not installed: apt-get install openssl" 4
directory=$1 what=$2
shift 2
days=${DAYS:-1825}
[[ $days =~ ^[1-9][0-9]{0,4}$ ]] || die "DAYS=$days is no number of days" 2
mkdir -p "$directory"
cd "$directory"

MONTH=2592000
NAME='^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$'

# quietly COMMAND...: its words only when it fails
quietly() {
  local told
  told=$("$@" 2>&1) || die "$(printf '%s failed:\n%s' "$1 $2" "$told")"
}

# good CERTIFICATE KEY: there, and for a month to come
good() { [[ -s $1 && -s $2 ]] && openssl x509 -in "$1" -noout -checkend "$MONTH" >/dev/null 2>&1; }

# authority NAME: a root of its own; who is let in by one is nobody to another
authority() {
  if ! [[ -s $1-ca.pem && -s $1-ca.key ]]; then
    quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 -days 7300 \
      -subj "/CN=edged $1 CA" -addext basicConstraints=critical,CA:TRUE,pathlen:0 \
      -addext keyUsage=critical,keyCertSign,cRLSign -keyout "$1-ca.key" -out "$1-ca.pem.new"
    mv "$1-ca.pem.new" "$1-ca.pem"
  fi
  chmod 644 "$1-ca.pem"
}

# issue CA STEM SUBJECT EXTENSIONS: STEM.key and STEM.pem
issue() {
  if good "$2.pem" "$2.key"; then
    echo "$directory/$2.pem: good, left as it is"
    return
  fi
  quietly openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 \
    -subj "/CN=$3" -keyout "$2.key.new" -out "$2.csr"
  quietly openssl x509 -req -sha256 -days "$days" -in "$2.csr" -CA "$1-ca.pem" -CAkey "$1-ca.key" \
    -set_serial "0x$(openssl rand -hex 16 | sed 's/^./4/')" -extfile <(printf '%s\n' "$4") -out "$2.pem.new"
  mv "$2.key.new" "$2.key"
  mv "$2.pem.new" "$2.pem"
  rm -f "$2.csr"
  chmod 644 "$2.pem"
  echo "$directory/$2.pem: made, good for $days days"
}

# with_list CA ARGUMENT...: `openssl ca` with the list of what was revoked
with_list() {
  touch "$1.revoked"
  quietly openssl ca -config <(printf '%s\n' '[ca]' 'default_ca=d' '[d]' "database=$1.revoked" \
    'default_md=sha256' 'unique_subject=no') -cert "$1-ca.pem" -keyfile "$1-ca.key" "${@:2}"
}

# list CA: the revocation list; one that has run out would shut everybody out, so it is good as long as the CA
list() {
  with_list "$1" -gencrl -crldays 7300 -out "$1.crl.new"
  mv "$1.crl.new" "$1.crl"
  chmod 644 "$1.crl"
}

# A program that lost root's rights reads the key: mosquitto does from 2.0 on.
hand_over() {
  if [[ $EUID == 0 ]] && getent passwd mosquitto >/dev/null; then
    chown mosquitto: broker.key
    chmod 755 .
  fi
}

case $what in
broker)
  names=
  for host in "$@"; do
    [[ $host =~ ^[A-Za-z0-9.:-]+$ ]] || die "$host is neither a name nor an address" 2
    if [[ $host == *:* || $host =~ ^[0-9.]+$ ]]; then names+=",IP:$host"; else names+=",DNS:$host"; fi
  done
  authority broker
  for ca in devices operators; do
    authority "$ca"
    [[ -s $ca.crl ]] || list "$ca"
  done
  # Other names than before want another certificate.
  [[ -s broker.names && $(<broker.names) == "$names" ]] || rm -f broker.pem
  issue broker broker "$1" "subjectAltName=${names#,}"$'\n''extendedKeyUsage=serverAuth'
  printf '%s\n' "$names" >broker.names
  hand_over
  ;;
device | operator)
  ca=${what}s
  [[ -s $ca-ca.key ]] || die "$directory holds no CA: make it with \`certificates.sh $directory broker HOST\`"
  mkdir -p "$ca"
  for name in "$@"; do
    [[ $name =~ $NAME ]] || die "$name is no name: letters, digits, _ . - and at most 63 of them" 2
    [[ $what != device || $name != sensors ]] || die "a device cannot be called sensors: see devices.acl" 2
    issue "$ca" "$ca/$name" "$name" extendedKeyUsage=clientAuth
  done
  ;;
revoke)
  [[ $# == 2 && ($1 == device || $1 == operator) ]] || usage
  ca=${1}s
  [[ $2 =~ $NAME && -s $ca/$2.pem ]] || die "there is no certificate $directory/$ca/$2.pem"
  serial=$(openssl x509 -in "$ca/$2.pem" -noout -serial)
  if [[ -s $ca.revoked ]] && grep -q $'\t'"${serial#serial=}"$'\t' "$ca.revoked"; then
    echo "$2 was revoked already"
  else
    with_list "$ca" -revoke "$ca/$2.pem"
    echo "$2 is revoked: reload the broker (systemctl reload mosquitto)"
  fi
  list "$ca"
  # Its key is of no use any more; the next `$1 NAME` makes a new pair.
  rm -f "$ca/$2.key"
  ;;
*) usage ;;
esac
