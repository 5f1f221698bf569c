"""The public API for plugins, in one module.

Names are loaded on first use, so loading a plugin takes no longer than its own imports. At the top of the entry-point
module, import only hooks, records, errors, the log and the clock; import everything else inside functions. Modules of
`elastic_core` that the reference does not describe are private and may change in any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.support.imports import lazy_names as lazy_names

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from elastic_core.hooks.spec import hookimpl as hookimpl
    from elastic_core.hooks.records import (
        BACKEND_OPTIONS as BACKEND_OPTIONS, CommandRecord as CommandRecord, Context as Context,
        HealthCheckRecord as HealthCheckRecord,
        HealthEndpointRecord as HealthEndpointRecord, NoticeRecord as NoticeRecord, Option as Option,
        RankPolicyRecord as RankPolicyRecord, Record as Record, RendezvousBackendRecord as RendezvousBackendRecord,
        StoreRecord as StoreRecord, WatchdogRecord as WatchdogRecord, WorkerStarterRecord as WorkerStarterRecord
    )
    from elastic_core.parsing import find_option as find_option, type_options as type_options
    from elastic_core.config.settings import Settings as Settings
    from elastic_core.errors import (
        ConfigurationError as ConfigurationError, ElasticError as ElasticError, ExitCode as ExitCode,
        PluginError as PluginError, Problem as Problem, ProcessFailure as ProcessFailure,
        RendezvousClosedError as RendezvousClosedError, described_error as described_error,
        RendezvousConnectionError as RendezvousConnectionError, RendezvousError as RendezvousError,
        RendezvousStateError as RendezvousStateError, RendezvousTimeoutError as RendezvousTimeoutError
    )
    from elastic_core.log import get_logger as get_logger, show_unless_logged as show_unless_logged
    from elastic_core.clock import (
        Backoff as Backoff, Clock as Clock, Duration as Duration, Instant as Instant, SystemClock as SystemClock,
        later as later
    )
    from elastic_core.interfaces.observer import (
        AgentFinished as AgentFinished, PhaseChanged as PhaseChanged, Recovered as Recovered,
        RestartDecided as RestartDecided, RoundFormed as RoundFormed, WorkerExited as WorkerExited,
        WorkerFailed as WorkerFailed, WorkersStarted as WorkersStarted
    )
    from elastic_core.events import (
        Event as Event, EventHandler as EventHandler, EventMetadataValue as EventMetadataValue,
        EventSource as EventSource, register_handler as register_handler
    )
    from elastic_core.interfaces.node import (
        Candidate as Candidate, Member as Member, Node as Node, Notice as Notice, Notices as Notices, Pause as Pause,
        RankPolicy as RankPolicy, Round as Round
    )
    from elastic_core.interfaces.backend import (
        Announced as Announced, EntryDroppedError as EntryDroppedError, RendezvousBackend as RendezvousBackend,
        RosterBackend as RosterBackend, RoundStores as RoundStores, ForeignStateError as ForeignStateError,
        Store as Store, StoreServer as StoreServer, Token as Token
    )
    from elastic_core.interfaces.handler import (
        Outcome as Outcome, RendezvousHandler as RendezvousHandler, RendezvousInfo as RendezvousInfo,
        RendezvousParameters as RendezvousParameters, RendezvousStoreInfo as RendezvousStoreInfo,
        RoundHandler as RoundHandler, Verdict as Verdict
    )
    from elastic_core.rendezvous.registry import RendezvousHandlerRegistry as RendezvousHandlerRegistry
    from elastic_core.rendezvous.handler import create_handler as create_handler
    from elastic_core.rendezvous.settings import (
        RendezvousSettings as RendezvousSettings, RendezvousTimeout as RendezvousTimeout,
        advertised_address as advertised_address, options_of as options_of, settings_of as settings_of
    )
    from elastic_core.compat.state_store import StateStore as StateStore
    from elastic_core.rendezvous.round_stores import StoreOnFirstUse as StoreOnFirstUse, MadeStores as MadeStores
    from elastic_core.rendezvous.store_backend import StoreBackend as StoreBackend
    from elastic_core.rendezvous.handover import POINTER_PATIENCE as POINTER_PATIENCE
    from elastic_core.rendezvous.store_connection import (
        StoreConnection as StoreConnection, StoreConnector as StoreConnector, unreachable_error as unreachable_error
    )
    from elastic_core.rendezvous.versions import is_wait_timeout as is_wait_timeout, peek as peek
    from elastic_core.support.workers_store import BACKLOG as BACKLOG, WorkersStore as WorkersStore
    from elastic_core.support.tcp_store import start_tcp_store as start_tcp_store
    from elastic_core.watchdog.guard import (
        CLIENT_VARIABLE as CLIENT_VARIABLE, TimerClient as TimerClient, TimerRequest as TimerRequest,
        configure as configure, expires as expires
    )
    from elastic_core.interfaces.health import (
        CheckLevel as CheckLevel, CheckMoment as CheckMoment, CheckResult as CheckResult, CheckStatus as CheckStatus,
        AgentPhase as AgentPhase, AgentStatus as AgentStatus, AgentView as AgentView,
        HealthCheck as HealthCheck, HealthCheckServer as HealthCheckServer, Recovery as Recovery,
        RoundStatus as RoundStatus, StopStatus as StopStatus, WorkerStatus as WorkerStatus
    )
    from elastic_core.health import Probe as Probe, live as live, ready as ready
    from elastic_core.interfaces.workers import (
        Child as Child, Expiry as Expiry, Launch as Launch, RoundPlan as RoundPlan, Starter as Starter,
        Watchdog as Watchdog, WatchedWorker as WatchedWorker, Work as Work, WorkerRanks as WorkerRanks
    )
    from elastic_core.workers.process import (
        CommandStarter as CommandStarter, bound_to_cpus as bound_to_cpus, cannot_run as cannot_run,
        reap_child as reap_child,
        substitute_local_rank as substitute_local_rank
    )
    from elastic_core.workers.functions import (
        FunctionStarter as FunctionStarter, pickled_process as pickled_process,
        read_function_result as read_function_result, run_script as run_script
    )
    from elastic_core.devices import usable_cpus as usable_cpus
    from elastic_core.support.sockets import (
        ip_address as ip_address, is_loopback as is_loopback, is_loopback_address as is_loopback_address,
        joined_host_port as joined_host_port, means_this_machine as means_this_machine, reached_at as reached_at,
        seen_from_outside as seen_from_outside, split_host_port as split_host_port, REFUSED as REFUSED,
        Address as Address, PortReservation as PortReservation, address_towards as address_towards,
        bound_everywhere as bound_everywhere, bound_socket as bound_socket, cannot_bind as cannot_bind,
        error_text as error_text, hosts_of as hosts_of, is_local_address as is_local_address,
        resolve_host as resolve_host, try_connect as try_connect
    )
    from elastic_core.hooks.calls import installed_record as installed_record
    from elastic_core.support.bounded import BackgroundCall as BackgroundCall, CallTimeout as CallTimeout
    from elastic_core.support.processes import (
        HelperProcess as HelperProcess, drop_in_forks as drop_in_forks, stop_dropping as stop_dropping,
        process_runs as process_runs, process_start_time as process_start_time
    )
    from elastic_core.support.files import (
        open_regular as open_regular, open_to_append as open_to_append, distrust_reason as distrust_reason
    )
    from elastic_core.support.secret_files import (
        keep_memory_private as keep_memory_private, read_secret as read_secret
    )
    from elastic_core.support.imports import import_with as import_with
    from elastic_core.text import counted as counted, in_one_line as in_one_line
    # isort: on
    # fmt: on

if not TYPE_CHECKING:  # type checkers assume that a module with `__getattr__` has every name
    __getattr__, __dir__ = lazy_names(__name__)
    __all__ = [*__dir__(), "lazy_names"]
