"""What an AppArmor profile allows, and which files a traced program has used."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

Rules = list[tuple[re.Pattern[str], str]]

_VARIABLE = re.compile(r"(?m)^(@\{\w+\}) *= *(.*)$")
_RULE = re.compile(r"(?m)^ *(deny )?(?:owner )?([/@]\S+) +([a-zA-Z]+),")
_CALL = re.compile(r"^(\w+)\((.*)\) += \d+(?:<(/.*)>)?$")
_NAME = re.compile(r'(?:(?:\d+|AT_FDCWD)<(/[^>]*)>, )?"([^"]*)"')
_CHANGE = re.compile(r"(mkdir|rmdir|unlink|rename|link|symlink|chmod|fchmod|chown|fchown|truncate)(at2?)?")


@dataclass(frozen=True)
class Profile:
    """The file rules of a profile, after AppArmor's own parser has put in what it includes."""

    allowed: Rules
    denied: Rules

    @classmethod
    def of(cls, path: Path) -> Profile:
        """Read a profile."""
        command = ["apparmor_parser", "--preprocess", "-I", "/etc/apparmor.d", str(path)]
        text = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        values = {name: [one.rstrip("/") for one in told.split()] for name, told in _VARIABLE.findall(text)}
        rules: dict[bool, Rules] = defaultdict(list)
        for deny, glob, rights in _RULE.findall(text):
            rules[bool(deny)].append((re.compile(_pattern(glob, values)), rights))
        return cls(rules[False], rules[True])

    def lacks(self, path: str, rights: set[str]) -> str:
        """Those of the rights (r, w, m, x) to a file or folder that the profile does not give."""
        given, taken = (
            {
                right
                for glob, has in rules
                if glob.fullmatch(path) or glob.fullmatch(f"{path}/")
                for right in has
            }
            for rules in (self.allowed, self.denied)
        )
        return "".join(sorted(rights - (given - taken)))


def _pattern(glob: str, values: Mapping[str, list[str]]) -> str:
    """The regular expression of a glob as apparmor.d(5) has it."""
    while name := re.search(r"@\{\w+\}", glob):
        glob = glob.replace(name[0], "{" + ",".join(values[name[0]]) + "}")
    special = {"**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")"}
    made, depth = "", 0
    for part in re.findall(r"\*\*|\[[^]]*\]|.", glob):
        depth += (part == "{") - (part == "}")
        if part == "," and depth:
            made += "|"
        else:
            made += part if part.startswith("[") else special.get(part) or re.escape(part)
    return made


def used(trace: str) -> dict[str, set[str]]:
    """By path, the rights that successful calls took, from what `strace -ff -y` has written."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in trace.splitlines():
        call = _CALL.match(line)
        if call is None:
            continue
        name, arguments, opened = call.groups()
        names = [str(PurePosixPath(folder, file)) for folder, file in _NAME.findall(arguments)]
        if name in ("open", "openat", "creat") and opened is not None:
            if "O_WRONLY" not in arguments:
                found[opened].add("r")
            if re.search("O_(WRONLY|RDWR|CREAT)", arguments):
                found[opened].add("w")
        elif name == "mmap" and "PROT_EXEC" in arguments and (file := re.search(r"\d+<(/[^>]*)>", arguments)):
            found[file[1]].add("m")
        elif name == "execve":
            found[names[0]].add("x")
        elif _CHANGE.fullmatch(name):
            for path in names:
                found[path].add("w")
    return dict(found)
