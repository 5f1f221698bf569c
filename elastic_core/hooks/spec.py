"""Every hook that elastic-core calls, in the order in which a launch calls them.

A plugin is a module (or an object) named by an entry point in group `elastic`:

    [project.entry-points.elastic]
    redis = "elastic_redis.plugin"

It implements the hooks it cares about, marks each with `hookimpl`, and may leave out arguments it does not use.
Plugins are called one after another, each on its own, so that one that raises does not disturb the rest; hence
there are no hook wrappers. Loading a plugin must be cheap: import torch, grpc and the like inside functions.
Three families: registration (plural nouns, return records), contribution (verbs, return values), notification
(past tense, return nothing).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.hooks.records import (
        HealthEndpointRecord,
        Option,
        RendezvousBackendRecord,
        StoreRecord,
        WatchdogRecord,
    )
    from elastic_core.interfaces.observer import (
        AgentFinished,
        RestartDecided,
        RoundFormed,
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
    that loads them, before the command line is read. An exception takes the plugin out with everything it brings;
    `elastic plugins` shows it, and the other plugins live.

    Each option becomes a flag, a variable and a configuration key like those of the core. Two plugins that add the
    same name both lose it, one that is named like an option of the core loses it, and the conflict is shown.

    A whole plugin::

        from elastic_core.hooks import Option, hookimpl

        @hookimpl
        def elastic_add_options():
            return [Option("team", str, None, "the team that pays for this job")]
    """


@hookspec
def elastic_rendezvous_backends() -> list[RendezvousBackendRecord]:  # type: ignore[empty-body]
    """Bring ways for nodes to find each other, selected by `--rdzv-backend`.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, before the configuration is read. An exception takes the plugin out with everything it brings;
    `elastic plugins` shows it, and the other plugins live.

    The factory of the selected record is called once per agent, in its thread, before the first round. What it
    raises ends the launch.

    A whole plugin::

        from elastic_core.hooks import Option, RendezvousBackendRecord, hookimpl

        def create(params):
            import redis  # inside, so that loading the plugin is cheap

            from elastic_redis.handler import RedisHandler

            return RedisHandler(redis.Redis.from_url(params.endpoint), params.run_id, params.get("lease"))

        @hookimpl
        def elastic_rendezvous_backends():
            lease = Option("lease", float, 10.0, "how long a silent node counts as present", "seconds", least=1)
            return [RendezvousBackendRecord("redis", "a Redis server", create, (lease,), aliases=("valkey",))]
    """


@hookspec
def elastic_stores() -> list[StoreRecord]:  # type: ignore[empty-body]
    """Bring key-value stores. Each that processes share (`StoreRecord.shared`) brings a rendezvous backend of its name
    with it, selected by `--rdzv-backend`, with the store's options beside those that every backend has.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, after `elastic_rendezvous_backends`. An exception takes the plugin out with everything it
    brings; `elastic plugins` shows it, and the other plugins live.

    A factory is called for every connection to the store, in the thread that needs it: a job's agent has up to three,
    and each is used by one thread at a time. It is given the store's options, with the endpoint as `endpoint`, `url` or
    `path`, whichever of them the store has, or as `host` and `port`. What it raises is told as an outage of the store,
    and tried again; a ConfigurationError ends the agent with exit code 2. After an error of the store the next call
    makes a new connection. Every operation has to end by itself.

    A whole plugin::

        from elastic_core.hooks import Option, StoreRecord, hookimpl

        def create(options):
            from elastic_redis.store import RedisStore

            return RedisStore(options["url"])

        @hookimpl
        def elastic_stores():
            return [StoreRecord("redis", "a Redis server", create, (Option("url", str, None, "the server"),))]
    """


@hookspec
def elastic_watchdogs() -> list[WatchdogRecord]:  # type: ignore[empty-body]
    """Bring ways to notice workers that hang, selected by `--watchdog`.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, after `elastic_stores`. An exception takes the plugin out with everything it brings; `elastic
    plugins` shows it, and the other plugins live.

    The factory of the selected record is called once per agent, in its thread, before the first worker starts.
    What it raises ends the launch.

    A whole plugin::

        from elastic_core.hooks import Option, WatchdogRecord, hookimpl

        def create(run_id, options):
            from elastic_gpu_idle.watchdog import IdleWatchdog

            return IdleWatchdog(options["after"])

        @hookimpl
        def elastic_watchdogs():
            after = Option("after", float, 600.0, "idle time that counts as hung", "seconds", above=0)
            return [WatchdogRecord("gpu-idle", "workers whose GPU does nothing", create, (after,))]
    """


@hookspec
def elastic_health_endpoints() -> list[HealthEndpointRecord]:  # type: ignore[empty-body]
    """Bring endpoints that others ask whether this agent is well, selected by `--health`.

    Called once in every process that loads plugins (the agent and the command line, never a worker), in the thread
    that loads them, after `elastic_watchdogs`. An exception takes the plugin out with everything it brings;
    `elastic plugins` shows it, and the other plugins live.

    The factory of the selected record is called once per agent, in its thread, before the first rendezvous.
    What it raises ends the launch.

    A whole plugin::

        from elastic_core.hooks import HealthEndpointRecord, hookimpl

        def create(agent, port, timeout, options):
            from elastic_grpc_health.server import GrpcHealth

            return GrpcHealth(agent, port, timeout)

        @hookimpl
        def elastic_health_endpoints():
            return [HealthEndpointRecord("grpc", "the gRPC health protocol", create)]
    """


@hookspec
def elastic_round_formed(fact: RoundFormed) -> None:
    """A round has formed with this node in it.

    Called once per round, in the agent's process and thread, before the workers of the round start. Return soon:
    the workers wait. `fact.formed.members` are the nodes of the round in the order of their ranks. An exception is
    logged with the plugin's name and version, and changes nothing.

    A whole plugin::

        from elastic_core.hooks import hookimpl

        @hookimpl
        def elastic_round_formed(fact):
            print(f"round {fact.round}: node {fact.group_rank} of {fact.group_world_size} after {fact.seconds:.1f} s")
    """


@hookspec
def elastic_contribute_environment(  # type: ignore[empty-body]
    plan: RoundPlan, options: Mapping[str, object]
) -> Mapping[str, str]:
    """Give variables to the workers of this node. `options` holds what users gave for the options that plugins added.

    Called once per round, in the agent's process and thread, after `elastic_round_formed` and before the workers
    start. An exception, or a value that is no text, is logged with the plugin's name and version, and the plugin
    contributes nothing to this round; the other plugins' variables count. When two plugins give different values to
    one variable, the first in the order of distribution and plugin names stands, and the conflict is logged.

    A whole plugin::

        from elastic_core.hooks import hookimpl

        @hookimpl
        def elastic_contribute_environment(plan):
            return {"WANDB_RUN_GROUP": f"{plan.run_id}-{plan.restart_count}"}
    """


@hookspec
def elastic_workers_started(fact: WorkersStarted) -> None:
    """The workers of this node run.

    Called once per round, in the agent's process and thread, as soon as all of them have started. Return soon:
    nobody watches the workers meanwhile. An exception is logged with the plugin's name and version, and changes
    nothing.

    A whole plugin::

        from elastic_core.hooks import hookimpl

        @hookimpl
        def elastic_workers_started(fact):
            print(f"round {fact.round} runs as", *fact.pids.values())
    """


@hookspec
def elastic_worker_failed(fact: WorkerFailed) -> None:
    """A worker of this node has failed.

    Called once per failed worker, in the agent's process and thread, after the node's whole group was stopped and
    its output read. An exception is logged with the plugin's name and version, and changes nothing.

    A whole plugin::

        from elastic_core.hooks import hookimpl

        @hookimpl
        def elastic_worker_failed(fact):
            print(f"rank {fact.failure.global_rank} on {fact.failure.node}: {fact.failure.reason}")
    """


@hookspec
def elastic_restart_decided(fact: RestartDecided) -> None:
    """The group starts again, after a failure or because nodes came or went.

    Called once per restart, in the agent's process and thread, before the next rendezvous. An exception is logged
    with the plugin's name and version, and changes nothing.

    A whole plugin::

        from elastic_core.hooks import hookimpl

        @hookimpl
        def elastic_restart_decided(fact):
            print(f"{fact.cause}: {fact.reason} ({fact.restart_count} of {fact.max_restarts} restarts used)")
    """


@hookspec
def elastic_agent_finished(fact: AgentFinished) -> None:
    """The agent is done, well or not.

    Called once per run, in the agent's process and thread, when no worker runs any more; not called when the agent
    itself is killed. An exception is logged with the plugin's name and version, and changes nothing.

    A whole plugin::

        from elastic_core.hooks import hookimpl

        @hookimpl
        def elastic_agent_finished(fact):
            print(f"{fact.run_id}: {fact.state} ({fact.reason})")
    """
