"""The names that the demo model is taught to look up: builtins, well known modules, functions and methods."""

import re
from dataclasses import dataclass

from pageant.scripts.demo_model.cleaning import excerpt, sentences
from pageant.scripts.demo_model.corpus import definitions
from pageant.scripts.demo_model.docstrings import Docstring, docstrings

ANSWER_CHARS_MAX = 200
ANSWER_CHARS_MIN = 20

_MODULES = (
    "abc", "argparse", "ast", "asyncio", "base64", "bisect", "calendar", "cmd", "codecs", "collections",
    "configparser", "contextlib", "copy", "csv", "ctypes", "curses", "dataclasses", "datetime", "dbm",
    "decimal", "difflib", "dis", "doctest", "email", "enum", "filecmp", "fileinput", "fnmatch", "fractions",
    "ftplib", "functools", "getopt", "getpass", "gettext", "glob", "graphlib", "gzip", "heapq", "hmac",
    "html", "http", "imaplib", "importlib", "inspect", "io", "ipaddress", "json", "keyword", "linecache",
    "locale", "logging", "lzma", "mailbox", "mimetypes", "multiprocessing", "numbers", "operator", "os",
    "pathlib", "pickle", "pickletools", "pkgutil", "platform", "plistlib", "poplib", "pprint", "profile",
    "queue", "random", "re", "sched", "secrets", "selectors", "shelve", "shlex", "shutil", "site", "smtplib",
    "socket", "socketserver", "sqlite3", "ssl", "stat", "statistics", "string", "struct", "subprocess",
    "symtable", "tarfile", "tempfile", "textwrap", "threading", "timeit", "token", "tokenize", "trace",
    "traceback", "tracemalloc", "turtle", "types", "typing", "unittest", "urllib", "uuid", "venv", "warnings",
    "wave", "weakref", "webbrowser", "xml", "zipfile", "zlib",
)  # fmt: skip

_OWNERS = (
    "itertools", "math", "time", "os", "os.path", "json", "re", "random", "shutil", "functools",
    "collections", "copy", "heapq", "bisect", "contextlib", "dataclasses", "statistics", "string", "secrets",
    "textwrap", "tempfile", "subprocess", "glob", "fnmatch", "csv", "base64", "datetime.date",
    "datetime.datetime", "enum", "fractions", "getpass", "gzip", "html", "inspect", "logging", "pathlib",
    "pathlib.Path", "pathlib.PurePath", "pprint", "queue", "queue.Queue", "shlex", "socket", "threading",
    "threading.Thread", "timeit", "traceback", "urllib.parse", "uuid", "zipfile", "warnings", "abc",
    "asyncio.tasks", "asyncio.runners", "collections.Counter", "collections.OrderedDict", "argparse",
)  # fmt: skip
_OS = (
    "chdir", "chmod", "close", "fork", "getcwd", "getpid", "kill", "link", "listdir", "mkdir", "open", "read",
    "remove", "rename", "rmdir", "scandir", "stat", "unlink", "write",
)  # fmt: skip

_ALIASES = {"asyncio.tasks": "asyncio", "asyncio.runners": "asyncio"}
_NOT_A_SENTENCE = re.compile(r"^[a-z]|\||\$|@|\\")
_NOT_FOR_READERS = re.compile(
    r"Copyright|All Rights|https?:|^See |PEP \d|comp\.lang|^Based on|^Please see|^General notes"
)
_ASIDES = re.compile(r" <http[^>]*>|^\w+\.py - ")


@dataclass(frozen=True)
class Name:
    """A documented name, the noun for it (`function`, `method`, `module`...) and what is said about it."""

    name: str
    kind: str
    answer: str


def names() -> list[Name]:
    """Every name worth a question, in a fixed order, each once."""
    found: dict[str, Name] = {}
    for name in (*_from_reference(), *_from_docstrings()):
        found.setdefault(name.name, name)
    return list(found.values())


def _from_reference() -> list[Name]:
    """Special methods and the methods of strings and dictionaries, as the language reference has them."""
    found = []
    for full_name, text in definitions().items():
        owner, _, name = full_name.rpartition(".")
        if owner == "object":
            found.append(_name(name, "method" if text[:6] != "This c" else "attribute", text))
        elif owner == "str":
            found.append(_name(full_name, "method", text))
    return [name for name in found if name]


def _from_docstrings() -> list[Name]:
    return [name for documented in docstrings() if (name := _from_docstring(documented))]


def _from_docstring(documented: Docstring) -> Name | None:
    """The question-worthy ones: listed modules, and what is directly in a listed module or class."""
    owner, _, last = documented.name.rpartition(".")
    if documented.kind == "module":
        return _name(documented.name, "module", documented.text) if documented.name in _MODULES else None
    if (owner and owner not in _OWNERS) or (owner == "os" and last[:1].islower() and last not in _OS):
        return None
    kind = documented.kind
    if kind == "class" and last.endswith(
        ("Error", "Exception", "Warning", "Interrupt", "Exit", "StopIteration")
    ):
        kind = "exception"
    elif kind == "function" and owner.rpartition(".")[2][:1].isupper():
        kind = "method"
    return _name(f"{_ALIASES.get(owner, owner)}.{last}" if owner else last, kind, documented.text)


def _name(name: str, kind: str, text: str) -> Name | None:
    found = sentences(_ASIDES.sub("", text))
    said = excerpt(
        [sentence for sentence in found if not _NOT_FOR_READERS.search(sentence)], ANSWER_CHARS_MAX
    )
    if len(said) < ANSWER_CHARS_MIN or _NOT_A_SENTENCE.search(said):
        return None
    return Name(name, kind, f"The {name} {kind}: {said}")
