"""All hooks of elastic-core, in the order in which a launch calls them.

A plugin is a module (or an object) named by an entry point in group `elastic`:

    [project.entry-points.elastic]
    redis = "elastic_redis.plugin"

A plugin implements only the hooks that it needs, and marks each hook with `hookimpl`. A hook may omit arguments that it
does not use. The core calls each plugin separately, so that an exception in one plugin does not affect other plugins.
Hook wrappers are therefore not supported. Loading a plugin must be fast: import torch, grpc and the like inside
functions.

There are three kinds of hooks: registration hooks (plural nouns) return records, contribution hooks (verbs) return
values, and notification hooks (past tense) return nothing. Contribution and notification hooks can also take a
`context` with the plugin's option values, the run's settings, and a logger that adds the plugin's name to each line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.hooks.records import (
        CommandRecord,
        Context,
        HealthCheckRecord,
        HealthEndpointRecord,
        NoticeRecord,
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
    """Add options to `elastic run`.

    Called once in each process that loads plugins (an agent or a command, not a worker), in the thread that loads them,
    before the command line is read. An exception disables only this plugin, and `elastic plugins` shows the error.

    Like the core's own options, each option becomes a flag, an environment variable and a config file key. If the core
    or another plugin already uses an option's name, the option is omitted and the conflict is reported.

    A complete plugin::

        from elastic_core.plugin import Option, hookimpl

        @hookimpl
        def elastic_add_options():
            return [Option("team", str, None, "the team that pays for this job")]
    """


@hookspec
def elastic_rendezvous_backends() -> list[RendezvousBackendRecord]:  # type: ignore[empty-body]
    """Register rendezvous backends, through which nodes find each other. Users select one with `--rdzv-backend`. For a
    key-value store, `elastic_stores` is shorter.

    Called once in each process that loads plugins (an agent or a command, not a worker), in the thread that loads them,
    before the configuration is read. An exception disables only this plugin, and `elastic plugins` shows the error.

    The selected record's factory is called once per agent, in the agent's thread, before the first round. If it raises,
    the launch ends with exit code 2 and an error that names the plugin.

    A complete plugin::

        from elastic_core.plugin import BACKEND_OPTIONS, Option, RendezvousBackendRecord, hookimpl

        def connect(context, params, suffix=""):
            from elastic_redis.backend import RedisBackend  # here, because it imports redis

            return RedisBackend(params.endpoint, context.options["database"], params.run_id + suffix)

        def create(context, params):
            from elastic_core.plugin import StateStore, create_handler

            store = StateStore(connect(context, params, "/stores"))
            return create_handler(store, connect(context, params), params)

        @hookimpl
        def elastic_rendezvous_backends():
            options = (*BACKEND_OPTIONS, Option("database", int, 0, "number of the Redis database", least=0))
            more = {"aliases": ("valkey",), "open_backend": connect}
            return [RendezvousBackendRecord("redis", "a Redis server", create, options, **more)]
    """


@hookspec
def elastic_stores() -> list[StoreRecord]:  # type: ignore[empty-body]
    """Register key-value stores. If several processes can share the store (`StoreRecord.shared`), the core also
    provides a rendezvous backend of the same name, with the store's options and the common backend options. Users
    select the backend with `--rdzv-backend`.

    Called once in each process that loads plugins (an agent or a command, not a worker), in the thread that loads them,
    after `elastic_rendezvous_backends`. An exception disables only this plugin, and `elastic plugins` shows the error.

    The factory is called for every connection to the store, in the thread that needs the connection. An agent has up to
    three connections, each used by only one thread at a time. The context has the store's options. The endpoint is
    passed as the option `endpoint`, `url` or `path`, whichever the store declares, or as `host` and `port`.

    If the factory raises an exception, the core treats it as an outage and retries. However, a ConfigurationError, a
    failed import, or an error that usually indicates a bug (such as TypeError, ValueError or LookupError) ends the
    agent with exit code 2. After a failed operation, the core opens a new connection. Give every operation a timeout.

    A complete plugin::

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
    """Register watchdogs, which detect hung workers. Users select one with `--watchdog`.

    Called once in each process that loads plugins (an agent or a command, not a worker), in the thread that loads them,
    after `elastic_stores`. An exception disables only this plugin, and `elastic plugins` shows the error.

    The selected record's factory is called once per agent, in the agent's thread, before the first worker starts. If it
    raises, the launch ends with exit code 2 and an error that names the plugin. The factory returns an
    `elastic_core.plugin.Watchdog`, which the agent notifies of each round's workers. See the page on watchdogs.

    A complete plugin::

        from elastic_core.plugin import Option, WatchdogRecord, hookimpl

        def create(context):
            from elastic_gpu_idle.watchdog import IdleWatchdog

            return IdleWatchdog(context.options["after"])

        @hookimpl
        def elastic_watchdogs():
            after = Option("after", float, 600.0, "idle time after which a worker is hung", "seconds", above=0)
            return [WatchdogRecord("gpu-idle", "workers with an idle GPU", create, (after,))]
    """


@hookspec
def elastic_health_endpoints() -> list[HealthEndpointRecord]:  # type: ignore[empty-body]
    """Register health endpoints, which report the agent's health. Users select one with `--health`.

    Called once in each process that loads plugins (an agent or a command, not a worker), in the thread that loads them,
    after `elastic_watchdogs`. An exception disables only this plugin, and `elastic plugins` shows the error.

    The selected record's factory is called once per agent, in the agent's thread, before the first rendezvous. If it
    raises, the launch ends with exit code 2 and an error that names the plugin.

    A complete plugin::

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
    """Register worker starters. Users select one with `--worker-starter`. By default, `subprocess` starts commands, and
    the starter named in `--start-method` starts functions.

    Called once in each process that loads plugins (an agent or a command, not a worker), in the thread that loads them,
    after `elastic_health_endpoints`. An exception disables only this plugin, and `elastic plugins` shows the error.

    The selected record's factory is called once per agent, in the agent's thread, before the first worker starts. If it
    raises, the launch ends with exit code 2 and an error that names the plugin. The factory returns an
    `elastic_core.plugin.Starter`, which the agent calls in its thread, once for each worker of a round.

    A complete plugin::

        import subprocess

        from elastic_core.plugin import ConfigurationError, Option, Problem, WorkerStarterRecord, hookimpl

        class Worker(subprocess.Popen):
            def own_sentinel(self):
                return None  # the agent can watch the process id

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
                raise ConfigurationError(Problem("--worker-starter", "cannot run a function; give a command"))
            return NiceStarter(work.command, context.options["level"])

        @hookimpl
        def elastic_worker_starters():
            level = Option("level", int, 10, "added to the niceness", least=0, most=19)
            return [WorkerStarterRecord("nice", "commands at a lower priority", create, (level,))]
    """


@hookspec
def elastic_rank_policies() -> list[RankPolicyRecord]:  # type: ignore[empty-body]
    """Register rank policies, which order the nodes of a round. Users select one with `--rank-policy`. By default,
    nodes keep their ranks, and new nodes take the ranks of nodes that have left or failed.

    Called once in each process that loads plugins (an agent or a command, not a worker), in the thread that loads them,
    after `elastic_worker_starters`. An exception disables only this plugin, and `elastic plugins` shows the error.

    The selected record's factory is called once per agent, in the agent's thread, before the first rendezvous. If it
    raises, the launch ends with exit code 2 and an error that names the plugin. The factory returns an
    `elastic_core.plugin.RankPolicy`. The leader calls its own policy for every round. Any node can become the leader,
    so configure the same policy on all nodes. If the policy raises an exception or does not return exactly the given
    nodes, the core logs the error and uses the default order.

    A complete plugin::

        from elastic_core.plugin import RankPolicyRecord, hookimpl

        def largest_first(candidates):
            return sorted(candidates, key=lambda it: -it.node.local_world_size)

        @hookimpl
        def elastic_rank_policies():
            return [RankPolicyRecord("largest-first", "nodes with more workers first", lambda context: largest_first)]
    """


@hookspec
def elastic_health_checks() -> list[HealthCheckRecord]:  # type: ignore[empty-body]
    """Register health checks for this machine. `elastic doctor` runs them before a job, and a health endpoint shows
    their results while a job runs.

    Called once in each process that loads plugins (an agent or a command, not a worker), in the thread that loads them,
    after `elastic_rank_policies`. An exception disables only this plugin, and `elastic plugins` shows the error.

    The factories of all records are called concurrently, each in a separate thread. `elastic doctor` calls them once.
    An agent calls them when a client queries its health endpoint, but at most once a minute. A check may yield
    several results. It must have no side effects. It fails if it raises or takes longer than the record's `timeout`;
    results that it has yielded before are lost. If a part of the check may hang, run that part in a `BackgroundCall`.
    The record's `when` can limit the check to one of these two uses.

    A complete plugin::

        import os

        from elastic_core.plugin import CheckLevel, CheckResult, HealthCheckRecord, hookimpl

        def mounted(context):
            if os.path.ismount("/data"):
                return CheckResult(CheckLevel.OK, "/data is mounted")
            return CheckResult(CheckLevel.FAILURE, "/data is not mounted", "mount /data")

        @hookimpl
        def elastic_health_checks():
            return [HealthCheckRecord("data", "the data volume is mounted", mounted)]
    """


@hookspec
def elastic_notices() -> list[NoticeRecord]:  # type: ignore[empty-body]
    """Register notice sources, which find out in advance that this node must leave the job.

    Called once in each process that loads plugins (an agent or a command, not a worker), in the thread that loads them,
    after `elastic_health_checks`. An exception disables only this plugin, and `elastic plugins` shows the error.

    Every record's factory is called once per agent, in the agent's thread, before the first rendezvous. If a factory
    raises, the launch ends with exit code 2 and an error that names the plugin. A factory is usually a generator
    function. It returns an iterator of notices, which the core reads in a separate thread. Each notice replaces the
    source's previous notice, and None withdraws it. When there is just enough time left to stop the workers
    (`--shutdown-timeout` plus `--kill-timeout`), the agent stops them as it does after SIGTERM. All workers of the
    round can save a checkpoint after the same step. The node then leaves, and the other nodes continue. A notice that
    is withdrawn before the agent stops the workers has no effect.

    `pause(seconds)` waits. It returns false when the agent ends, and the iterator must then end, too. If the
    iterator raises an exception, the core logs it and no longer watches the source.

    A complete plugin::

        import os

        from elastic_core.plugin import Notice, NoticeRecord, hookimpl

        def maintenance(context, pause):
            known = False
            while pause(5.0):
                found = os.path.exists("/run/maintenance")
                if found != known:
                    yield Notice("the machine goes into maintenance") if found else None
                known = found

        @hookimpl
        def elastic_notices():
            return [NoticeRecord("maintenance", "the file /run/maintenance exists", maintenance)]
    """


@hookspec
def elastic_commands() -> list[CommandRecord]:  # type: ignore[empty-body]
    """Register commands, which users call as `elastic NAME`. A plugin cannot replace a built-in command.

    Called once in each process that loads plugins (an agent or a command, not a worker), in the thread that loads them,
    after `elastic_notices`. An exception disables only this plugin, and `elastic plugins` shows the error.

    The record's factory runs the command in the main thread. The output of `elastic NAME --help` is generated from the
    record. A command that is `like_run` accepts the command line of `elastic run`, and receives the run's plan. If the
    factory raises a ConfigurationError, the exit code is 2; other elastic-core errors have the same exit codes as in
    `elastic run`. Any other exception ends the command with exit code 2 and an error that names the plugin.

    A complete plugin::

        from elastic_core.plugin import CommandRecord, Option, hookimpl

        def forget(context, operands):
            (run_id,) = operands
            print(f"forgot {run_id} at {context.settings['rdzv_endpoint'] or 'the default endpoint'}")
            return 0 if context.options["really"] else 1

        @hookimpl
        def elastic_commands():
            really = Option("really", bool, False, "do it")
            accepted = {"settings": ("rdzv_endpoint",), "operands": ("RUN_ID",)}
            return [CommandRecord("forget", "forget a job", forget, options=(really,), **accepted)]
    """


@hookspec
def elastic_round_formed(fact: RoundFormed, context: Context) -> None:
    """A round has formed, and this node is a member of it.

    Called once per round, in the agent's process and thread, before the round's workers start. Return quickly, because
    the workers do not start until the hook returns. `fact.formed.members` lists the round's nodes in rank order. An
    exception is logged with the plugin's name and version and has no other effect.

    A complete plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_round_formed(fact):
            print(f"round {fact.round}: node {fact.group_rank} of {fact.group_world_size} after {fact.seconds:.1f} s")
    """


@hookspec
def elastic_contribute_environment(plan: RoundPlan, context: Context) -> Mapping[str, str]:  # type: ignore[empty-body]
    """Add variables to the environment of this node's workers.

    Called once per round, in the agent's process and thread, after `elastic_round_formed` and before the workers start.
    An exception, or a value that is not a string, is logged with the plugin's name and version. All variables of that
    plugin are then ignored for this round. If two plugins set a variable to different values, the conflict is logged.
    The core uses the value from the plugin whose distribution name sorts first. Within a distribution, the plugin's
    name decides.

    A complete plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_contribute_environment(plan):
            return {"WANDB_RUN_GROUP": f"{plan.run_id}-{plan.restart_count}"}
    """


@hookspec
def elastic_workers_started(fact: WorkersStarted, context: Context) -> None:
    """The workers of this node have started.

    Called once per round, in the agent's process and thread, as soon as all workers have started. Return quickly,
    because the agent does not monitor the workers until the hook returns. An exception is logged with the plugin's name
    and version and has no other effect.

    A complete plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_workers_started(fact):
            print(f"round {fact.round} runs as", *fact.pids.values())
    """


@hookspec
def elastic_worker_exited(fact: WorkerExited, context: Context) -> None:
    """A worker of this node has exited.

    Called once for each worker, also if the agent has stopped it (`fact.stopped`). The call is made in the agent's
    process and thread, as soon as the agent notices the exit. An exception is logged with the plugin's name and version
    and has no other effect.

    A complete plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_worker_exited(fact):
            print(f"local rank {fact.local_rank}: exit code {fact.exitcode}")
    """


@hookspec
def elastic_worker_failed(fact: WorkerFailed, context: Context) -> None:
    """A worker of this node has failed.

    Called once per failed worker, in the agent's process and thread, after all workers of this node have stopped and
    their output has been read. An exception is logged with the plugin's name and version and has no other effect.

    A complete plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_worker_failed(fact):
            print(f"rank {fact.failure.global_rank} on {fact.failure.node}: {fact.failure.reason}")
    """


@hookspec
def elastic_restart_decided(fact: RestartDecided, context: Context) -> None:
    """The agent is about to restart the workers, after a failure or because nodes joined, left or failed.

    Called once per restart on each node, in the agent's process and thread, normally before the next rendezvous. If a
    node failure may have caused the worker failure, the call is delayed until the next round has formed and the cause
    is known. An exception is logged with the plugin's name and version and has no other effect.

    A complete plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_restart_decided(fact):
            print(f"{fact.cause}: {fact.reason} ({fact.restart_count} of {fact.max_restarts} restarts used)")
    """


@hookspec
def elastic_phase_changed(fact: PhaseChanged, context: Context) -> None:
    """The agent's phase (joining, starting, running, ...) or the reason for it has changed.

    Called once per change, in the agent's process and thread. Return quickly: the agent is blocked until the hook
    returns. An exception is logged with the plugin's name and version and has no other effect.

    A complete plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_phase_changed(fact):
            print(f"{fact.phase.value}: {fact.reason}")
    """


@hookspec
def elastic_recovered(fact: Recovered, context: Context) -> None:
    """The workers of this node are running again after a failure, a hang or a membership change.

    Called once per recovery, in the agent's process and thread, when all workers have started, just before the
    corresponding call to `elastic_phase_changed`. `fact.recovery` has the duration of each step: detect, stop,
    rendezvous and start. An exception is logged with the plugin's name and version and has no other effect.

    A complete plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_recovered(fact):
            print(f"{fact.node} recovered from {fact.recovery.cause} in {fact.recovery.total:.1f} s")
    """


@hookspec
def elastic_agent_finished(fact: AgentFinished, context: Context) -> None:
    """The agent has finished, successfully or not.

    Called once per agent, and thus on each node, in the agent's process and thread, after all workers have ended. Not
    called if the agent itself is killed. The process exits soon afterward, so wait here for calls that still run in
    other threads, for a few seconds at most. An exception is logged with the plugin's name and version and has no other
    effect.

    A complete plugin::

        from elastic_core.plugin import hookimpl

        @hookimpl
        def elastic_agent_finished(fact):
            print(f"{fact.run_id}: {fact.state} ({fact.reason})")
    """
