"""The contracts for notification hooks and commands find planted faults. Each faulty plugin fails the test for its
fault."""

from __future__ import annotations

import dataclasses
import time
from typing import get_args

import pytest
from elastic_testing import CommandContract, NotificationContract
from elastic_testing.notifications import largest_facts, smallest_facts

from elastic_core.hooks.calls import hook_of
from elastic_core.interfaces.observer import Fact
from elastic_core.plugin import Option


@pytest.mark.parametrize("facts", [smallest_facts, largest_facts])
def test_facts_of_the_contract_are_all_facts(facts):
    assert {hook: type(fact) for hook, fact in facts().items()} == {hook_of(kind): kind for kind in get_args(Fact)}


class Correct:
    """Accepts every fact."""

    def __init__(self):
        self.seen = []

    def elastic_add_options(self):
        return [Option("pager", str, None, "who is called"), Option("team", str, "blue", "who asks")]

    def elastic_round_formed(self, fact, context):
        self.seen.append((fact.formed.members[-1].node, context.options["pager"], context.options["team"]))

    def elastic_agent_finished(self):
        self.seen.append("finished")


class Contract(NotificationContract):
    """The contract as a plugin subclasses it."""

    __test__ = False
    options = {"pager": "me"}


class Hurried(Contract):
    """A shorter limit, so that a slow hook fails sooner."""

    limit = 2.0


class ExpectsASecondNode(Correct):
    def elastic_round_formed(self, fact):
        self.seen.append(fact.formed.members[1])


class BuildsAPath(Correct):
    def elastic_agent_finished(self, fact):
        open(f"/tmp/{fact.reason}").close()


class IsSlow(Correct):
    def elastic_round_formed(self, fact):
        time.sleep(0.001 * len(fact.formed.members))


class KnowsAllFields(Correct):
    def elastic_agent_finished(self, fact):
        _run_id, _state, reason, _restarts = dataclasses.astuple(fact)
        self.seen.append(reason)


class Returns(Correct):
    def elastic_agent_finished(self, fact):
        return fact


class WantsMore(Correct):
    def elastic_agent_finished(self, fact, settings):
        self.seen.append(settings)


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (ExpectsASecondNode, "test_smallest_facts_are_accepted"),
        (BuildsAPath, "test_largest_facts_are_accepted"),
        (IsSlow, "test_largest_facts_are_accepted"),
        (KnowsAllFields, "test_fields_of_later_versions_are_ignored"),
        (Returns, "test_smallest_facts_are_accepted"),
        (WantsMore, "test_smallest_facts_are_accepted"),
        (object, "test_smallest_facts_are_accepted"),
    ],
)
def test_faulty_hook_fails_its_contract_test(kind, test):
    with pytest.raises((AssertionError, LookupError, OSError, TypeError, ValueError)):
        getattr(Hurried(), test)(kind())


def test_correct_hooks_pass():
    for test in (name for name in dir(Contract) if name.startswith("test_")):
        plugin = Correct()
        getattr(Contract(), test)(plugin)
        ((_, pager, team), finished) = plugin.seen
        assert (pager, team, finished) == ("me", "blue", "finished")


COMMANDS = """
import argparse

from elastic_core.plugin import CommandRecord, Option, hookimpl


def torn(context, words):
    if "--help" in words:
        import torch
        print("torn")


def deaf(context, words):
    print("ignores", words)


def helpless(context, words):
    argparse.ArgumentParser(add_help=False).parse_args(words)


def fails(context, operands):
    raise LookupError(operands[0])


@hookimpl
def elastic_commands():
    return [
        CommandRecord("fine", "print the job", lambda context, operands: print(*operands), operands=("RUN_ID",)),
        CommandRecord("torn", "load torch", torn, None),
        CommandRecord("deaf", "ignore all flags", deaf, None),
        CommandRecord("helpless", "have no help", helpless, None),
        CommandRecord("fails", "fail", fails, operands=("RUN_ID",)),
    ]
"""


@pytest.fixture
def installed(put_on_path):
    folder = put_on_path("commander", {"elastic": ["commander = commander_plugin"]}, {"commander_plugin": COMMANDS})
    (folder / "torch.py").touch()  # for the commands, which run in another process; this one keeps its own torch


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "test"),
    [
        (["absent"], "test_help_describes_command"),
        (["helpless"], "test_help_describes_command"),
        (["torn"], "test_help_does_not_import_torch"),
        (["deaf"], "test_unknown_flag_is_an_error"),
        (["fails", "job7"], "test_command_succeeds"),
        (["fine"], "test_command_succeeds"),  # without its operand
    ],
)
def test_faulty_command_fails_its_contract_test(installed, words, test):
    with pytest.raises(AssertionError):
        getattr(CommandContract(), test)(words)


@pytest.mark.integration
def test_correct_command_passes(installed):
    for test in (name for name in dir(CommandContract) if name.startswith("test_")):
        getattr(CommandContract(), test)(["fine", "job7"])
