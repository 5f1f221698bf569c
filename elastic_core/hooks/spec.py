"""Every hook that elastic-core calls, in the order in which a launch calls them.

A plugin is a module (or an object) named by an entry point in group `elastic`:

    [project.entry-points.elastic]
    redis = "elastic_redis.plugin"

A plugin implements only the hooks that it needs, marks each with `hookimpl`, and may leave out arguments that it does
not use. The core calls plugins one by one, so that an exception of one plugin does not affect the others; therefore
there are no hook wrappers. Loading a plugin must be cheap: import torch, grpc and the like inside functions.

There are three families of hooks: registration hooks (plural nouns) return records, contribution hooks (verbs) return
values, and notification hooks (past tense) return nothing. The latter two may also take a `context`: the plugin's
option values, the run's settings, and a logger that adds the plugin's name to each line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.hooks.context import Context
    from elastic_core.hooks.records import (
        CommandRecord,
        HealthCheckRecord,
        HealthEndpointRecord,
        Option,
        RankPolicyRecord,
        RendezvousBackendRecord,
        StoreRecord,
        WatchdogRecord,
        WorkerStarterRecord,
    )
    from elastic_core.interfaces.observer import (
        AgentFinished,
        PhaseChanged,
        Recovered,
        RestartDecided,
        RoundFormed,
        WorkerExited,
        WorkerFailed,
        WorkersStarted,
    )
    from elastic_core.interfaces.workers import RoundPlan

PROJECT = "elastic"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def elastic_add_options() -> list[Option]:  # type: ignore[empty-body]
    """Add options of the plugin's own to `elastic run`.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, before the command line is read. An exception removes the plugin with everything it brings;
    `elastic plugins` shows the exception, and the other plugins are used.

    Each option becomes a flag, a variable and a configuration key, like the options of the core. An option is left out
    if another plugin adds the same name, or if the core has an option of that name; the conflict is shown.

    A whole plugin::

        from elastic_core.plugin import Option, hookimpl

        @hookimpl
        def elastic_add_options():
            return [Option("team", str, None, "the team that pays for this job")]
    """


@hookspec
def elastic_rendezvous_backends() -> list[RendezvousBackendRecord]:  # type: ignore[empty-body]
    """Register ways for nodes to find each other, selected by `--rdzv-backend`.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, before the configuration is read. An exception removes the plugin with everything it brings;
    `elastic plugins` shows the exception, and the other plugins are used.

    The factory of the selected record is called once per agent, in the agent's thread, before the first round. An
    exception of the factory ends the launch with exit code 2, and the error names the plugin.

    A whole plugin::

        from elastic_core.plugin import BACKEND_OPTIONS, Option, RendezvousBackendRecord, hookimpl

        def create(context, params):
            from elastic_core.plugin import StateStore, create_handler
            from elastic_redis.backend import RedisBackend  # inside, because it imports redis

            number = params.get("database")
            store = StateStore(RedisBackend(params.endpoint, number, f"{params.run_id}/stores"))
            return create_handler(store, RedisBackend(params.endpoint, number, params.run_id), params)

        @hookimpl
        def elastic_rendezvous_backends():
            options = (*BACKEND_OPTIONS, Option("database", int, 0, "number of the Redis database", least=0))
            return [RendezvousBackendRecord("redis", "a Redis server", create, options, aliases=("valkey",))]
    """


@hookspec
def elastic_stores() -> list[StoreRecord]:  # type: ignore[empty-body]
    """Register key-value stores. A store that processes share (`StoreRecord.shared`) brings a rendezvous backend of the
    same name, selected by `--rdzv-backend`. The backend has the store's options and those that every backend has.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, after `elastic_rendezvous_backends`. An exception removes the plugin with everything it brings;
    `elastic plugins` shows the exception, and the other plugins are used.

    The factory is called for every connection to the store, in the thread that needs the connection. An agent has up to
    three connections, and only one thread at a time uses each. Its context has the store's options, with the
    endpoint as the option `endpoint`, `url` or `path`, whichever of them the store has, or as `host` and `port`. An
    exception of the factory counts as an outage of the store, and the core tries again. But a ConfigurationError, a
    module that cannot be imported, and an error that mostly comes from a mistake in the code (TypeError, ValueError,
    LookupError and the like) end the agent with exit code 2. After an error of the store the core makes a new
    connection. Every operation must end by itself.

    A whole plugin::

        from elastic_core.plugin import Option, StoreRecord, hookimpl

        def create(context):
            from elastic_redis.store import RedisStore

            return RedisStore(context.options["url"])

        @hookimpl
        def elastic_stores():
            return [StoreRecord("redis", "a Redis server", create, (Option("url", str, None, "the server"),))]
    """


@hookspec
def elastic_watchdogs() -> list[WatchdogRecord]:  # type: ignore[empty-body]
    """Register ways to notice workers that hang, selected by `--watchdog`.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, after `elastic_stores`. An exception removes the plugin with everything it brings; `elastic
    plugins` shows the exception, and the other plugins are used.

    The factory of the selected record is called once per agent, in the agent's thread, before the first worker starts.
    An exception of the factory ends the launch with exit code 2, and the error names the plugin. The factory returns an
    `elastic_core.plugin.Watchdog`, which is told of each round's workers. The page on timers has a whole
    one.

    A whole plugin::

        from elastic_core.plugin import Option, WatchdogRecord, hookimpl

        def create(context):
            from elastic_gpu_idle.watchdog import IdleWatchdog

            return IdleWatchdog(context.options["after"])

        @hookimpl
        def elastic_watchdogs():
            after = Option("after", float, 600.0, "idle time that counts as hung", "seconds", above=0)
            return [WatchdogRecord("gpu-idle", "workers whose GPU does nothing", create, (after,))]
    """


@hookspec
def elastic_health_endpoints() -> list[HealthEndpointRecord]:  # type: ignore[empty-body]
    """Register endpoints that report the health of this agent, selected by `--health`.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, after `elastic_watchdogs`. An exception removes the plugin with everything it brings;
    `elastic plugins` shows the exception, and the other plugins are used.

    The factory of the selected record is called once per agent, in the agent's thread, before the first rendezvous. An
    exception of the factory ends the launch with exit code 2, and the error names the plugin.

    A whole plugin::

        from elastic_core.plugin import HealthEndpointRecord, hookimpl

        def create(context, agent, port, timeout):
            from elastic_grpc_health.server import GrpcHealth

            return GrpcHealth(agent, port, timeout)

        @hookimpl
        def elastic_health_endpoints():
            return [HealthEndpointRecord("grpc", "the gRPC health protocol", create)]
    """


@hookspec
def elastic_worker_starters() -> list[WorkerStarterRecord]:  # type: ignore[empty-body]
    """Register ways to start workers, selected by `--worker-starter`. Without that flag commands are started by
    `subprocess`, and functions by the starter that `--start-method` names.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, after `elastic_health_endpoints`. An exception removes the plugin with everything it brings;
    `elastic plugins` shows the exception, and the other plugins are used.

    The factory of the selected record is called once per agent, in the agent's thread, before the first worker starts.
    An exception of the factory ends the launch with exit code 2, and the error names the plugin. The factory returns an
    `elastic_core.plugin.Starter`, which is called in the agent's thread, once for every worker of a round.

    A whole plugin::

        import subprocess

        from elastic_core.plugin import ConfigurationError, Option, Problem, WorkerStarterRecord, hookimpl

        class Worker(subprocess.Popen):
            def own_sentinel(self):
                return None  # its process id will do

        class NiceStarter:
            def __init__(self, command, level):
                self.command = ("nice", f"-n{level}", *command)

            def start(self, launch):
                return Worker(
                    self.command,
                    env=launch.environment,
                    stdout=launch.stdout,
                    stderr=launch.stderr,
                    start_new_session=True,
                    pass_fds=(launch.mark,),
                )

            def result(self, launch):
                return None

        def create(context, work):
            if not work.command:
                raise ConfigurationError(Problem("--worker-starter", "expected a command to run, found a function"))
            return NiceStarter(work.command, context.options["level"])

        @hookimpl
        def elastic_worker_starters():
            level = Option("level", int, 10, "added to the niceness", least=0, most=19)
            return [WorkerStarterRecord("nice", "commands at a lower priority", create, (level,))]
    """


@hookspec
def elastic_rank_policies() -> list[RankPolicyRecord]:  # type: ignore[empty-body]
    """Register orders of the nodes, selected by `--rank-policy`. Without that flag nodes keep their ranks, and
    newcomers take the places of those that are gone.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, after `elastic_worker_starters`. An exception removes the plugin with everything it brings;
    `elastic plugins` shows the exception, and the other plugins are used.

    The factory of the selected record is called once per agent, in the agent's thread, before the first rendezvous. An
    exception of the factory ends the launch with exit code 2, and the error names the plugin. The factory returns an
    `elastic_core.plugin.RankPolicy`. The node that leads the job calls its policy for every round; give all
    nodes the same. An error of the policy, or a result that is not the nodes in another order, is logged, and the round
    has the order that it would have without a policy.

    A whole plugin::

        from elastic_core.plugin import RankPolicyRecord, hookimpl

        def largest_first(candidates):
            return sorted(candidates, key=lambda it: -it.node.local_world_size)

        @hookimpl
        def elastic_rank_policies():
            return [RankPolicyRecord("largest-first", "nodes with more workers first", lambda context: largest_first)]
    """


@hookspec
def elastic_health_checks() -> list[HealthCheckRecord]:  # type: ignore[empty-body]
    """Register checks of this machine. `elastic doctor` makes them before a run, and a health endpoint shows them while
    a job runs.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, after `elastic_rank_policies`. An exception removes the plugin with everything it brings; `elastic
    plugins` shows the exception, and the other plugins are used.

    The factory of each record is called in a separate thread, all at the same time: once by `elastic doctor`, and in an
    agent with a health endpoint if somebody asks for its status, at most once a minute. It must not change anything. A
    check that raises an exception, or takes longer than the record's `timeout`, has failed. `when` of the record limits
    it to some of these moments.

    A whole plugin::

        import os

        from elastic_core.plugin import CheckLevel, CheckResult, HealthCheckRecord, hookimpl

        def mounted(context):
            if os.path.ismount("/data"):
                return CheckResult(CheckLevel.OK, "/data is mounted")
            return CheckResult(CheckLevel.FAILURE, "/data is not mounted", "mount /data")

        @hookimpl
        def elastic_health_checks():
            return [HealthCheckRecord("data", "the data is mounted", mounted)]
    """


@hookspec
def elastic_commands() -> list[CommandRecord]:  # type: ignore[empty-body]
    """Register commands, called as `elastic NAME`.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, after `elastic_health_checks`. An exception removes the plugin with everything it brings; `elastic
    plugins` shows the exception, and the other plugins are used. A command of elastic itself cannot be replaced.

    The factory of the record runs the command, in the main thread. `elastic NAME --help` is made from the record. A
    ConfigurationError ends the command with exit code 2; other errors are those of `elastic run`, see the exit codes.
    Any other exception ends it with exit code 2, and the error names the plugin.

    A whole plugin::

        from elastic_core.plugin import CommandRecord, Option, hookimpl

        def forget(context, operands):
            (run_id,) = operands
            print(f"forgot {run_id} at {context.settings['rdzv_endpoint'] or 'the usual place'}")
            return 0 if context.options["really"] else 1

        @hookimpl
        def elastic_commands():
            really = Option("really", bool, False, "do it")
            return [CommandRecord("forget", "forget a job", forget, (really,), (), ("rdzv_endpoint",), ("RUN_ID",))]
    """


@hookspec
def elastic_round_formed(fact: RoundFormed, context: Context) -> None:
    """A round has formed, and this node is a member of it.

    Called once per round, in the agent's process and thread, before the workers of the round start. Return soon,
    because the workers start only afterwards. `fact.formed.members` are the nodes of the round in the order of their
    ranks. An exception is logged with the plugin's name and version, and changes nothing.

    A whole plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_round_formed(fact):
            print(f"round {fact.round}: node {fact.group_rank} of {fact.group_world_size} after {fact.seconds:.1f} s")
    """


@hookspec
def elastic_contribute_environment(plan: RoundPlan, context: Context) -> Mapping[str, str]:  # type: ignore[empty-body]
    """Add variables to the environment of this node's workers.

    Called once per round, in the agent's process and thread, after `elastic_round_formed` and before the workers
    start. An exception, or a value that is not text, is logged with the plugin's name and version, and the plugin
    contributes nothing to this round; the variables of other plugins are used. If two plugins give different values to
    one variable, the plugin that is first in the order of distribution and plugin names wins, and the conflict is
    logged.

    A whole plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_contribute_environment(plan):
            return {"WANDB_RUN_GROUP": f"{plan.run_id}-{plan.restart_count}"}
    """


@hookspec
def elastic_workers_started(fact: WorkersStarted, context: Context) -> None:
    """The workers of this node have started.

    Called once per round, in the agent's process and thread, as soon as all workers have started. Return soon, because
    the agent does not watch the workers meanwhile. An exception is logged with the plugin's name and version, and
    changes nothing.

    A whole plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_workers_started(fact):
            print(f"round {fact.round} runs as", *fact.pids.values())
    """


@hookspec
def elastic_worker_exited(fact: WorkerExited, context: Context) -> None:
    """A worker of this node has exited by itself.

    Called once per worker, whether it succeeded or failed, in the agent's process and thread, as soon as the agent
    notices the exit. Not called for workers that the agent stops. An exception is logged with the plugin's name and
    version, and changes nothing.

    A whole plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_worker_exited(fact):
            print(f"local rank {fact.local_rank}: exit code {fact.exitcode}")
    """


@hookspec
def elastic_worker_failed(fact: WorkerFailed, context: Context) -> None:
    """A worker of this node has failed.

    Called once per failed worker, in the agent's process and thread, after the node's whole group was stopped and
    its output read. An exception is logged with the plugin's name and version, and changes nothing.

    A whole plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_worker_failed(fact):
            print(f"rank {fact.failure.global_rank} on {fact.failure.node}: {fact.failure.reason}")
    """


@hookspec
def elastic_restart_decided(fact: RestartDecided, context: Context) -> None:
    """The agent restarts the group of workers, after a failure or because nodes joined, left or were lost.

    Called once per restart, in the agent's process and thread: before the next rendezvous or, after a failure that may
    have followed from the loss of a node, when the next round has formed, because that shows the cause. An exception is
    logged with the plugin's name and version, and changes nothing.

    A whole plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_restart_decided(fact):
            print(f"{fact.cause}: {fact.reason} ({fact.restart_count} of {fact.max_restarts} restarts used)")
    """


@hookspec
def elastic_phase_changed(fact: PhaseChanged, context: Context) -> None:
    """The phase of the agent (joining, starting, running, ...) has changed, or the reason for it.

    Called once per change, in the agent's process and thread. Return quickly: the agent is blocked until the hook
    returns. An exception is logged with the plugin's name and version, and changes nothing.

    A whole plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_phase_changed(fact):
            print(f"{fact.phase.value}: {fact.reason}")
    """


@hookspec
def elastic_recovered(fact: Recovered, context: Context) -> None:
    """The workers of this node run again, after a failure, a hang or a change of the members.

    Called once per recovery, in the agent's process and thread, when all workers have started, and just before
    `elastic_phase_changed` is called for the same moment. `fact.recovery` has the durations of its parts: detect, stop,
    rendezvous and start. An exception is logged with the plugin's name and version, and changes nothing.

    A whole plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_recovered(fact):
            print(f"{fact.node} recovered from {fact.recovery.cause} in {fact.recovery.total:.1f} s")
    """


@hookspec
def elastic_agent_finished(fact: AgentFinished, context: Context) -> None:
    """The agent has finished, with success or not.

    Called once per run, in the agent's process and thread, when no worker runs any more; not called if the agent itself
    is killed. An exception is logged with the plugin's name and version, and changes nothing.

    A whole plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_agent_finished(fact):
            print(f"{fact.run_id}: {fact.state} ({fact.reason})")
    """
