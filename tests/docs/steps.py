"""The numbered steps of a traced run on a page, and the calls of a real one."""

from __future__ import annotations

import re


def of_page(page, title):
    """The numbered steps below a heading, each on one line."""
    text = page.split(f"\n## {title}\n")[1].split("\n## ")[0].split("\n### ")[0]
    return [" ".join(step.split()) for step in re.split(r"^\d+\. ", text, flags=re.M)[1:]]


def names_in(step, data):
    """The functions, classes, modules and files that a step names; `data` are names of something else."""
    return [name for name in re.findall(r"`([\w./]+)`", step) if name not in data]


def told_in(step):
    """What the log says meanwhile."""
    return [event for words in re.findall(r"\(([a-z ,]+)\)", step) for event in words.split(", ")]


def is_call_of(name, call):
    """Whether a call is one of a function, of a class, in a module or in a file of this name."""
    path, _, function = call.partition(":")
    if name.endswith(".py"):
        return path.endswith(f"/{name}")
    words = [*path.removesuffix(".py").split("/"), *function.split(".")]
    name = name.split(".")
    at = 0
    for word in words:
        at += at < len(name) and word == name[at]
    return at == len(name)
