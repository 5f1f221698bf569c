"""Maps torch's modules and names to the modules of elastic-core that replace them."""

from __future__ import annotations

_AGENT = "ElasticAgent RunResult SimpleElasticAgent Worker WorkerGroup WorkerSpec WorkerState"
_RENDEZVOUS = (
    "RendezvousClosedError RendezvousConnectionError RendezvousError RendezvousGracefulExitError RendezvousHandler "
    "RendezvousHandlerCreator RendezvousHandlerRegistry RendezvousInfo RendezvousParameters RendezvousStateError "
    "RendezvousStoreInfo RendezvousTimeoutError rendezvous_handler_registry"
)
_DYNAMIC = "DynamicRendezvousHandler RendezvousBackend RendezvousSettings RendezvousTimeout create_handler"
_LOGS = "DefaultLogsSpecs LogsDest LogsSpecs PContext RunProcsResult SignalException Std to_map"
_FAILURES = "ChildFailedError ErrorHandler ProcessFailure get_error_handler record"
_METRICS = (
    "ConsoleMetricHandler MetricData MetricHandler MetricStream MetricsConfig NullMetricHandler configure "
    "getStream get_elapsed_time_ms prof put_metric"
)
_EVENTS = "Event EventMetadataValue EventSource NodeState RdzvEvent"
_TIMERS = "TimerClient TimerRequest TimerServer configure expires"
_FILE_TIMER = "FileTimerClient FileTimerRequest FileTimerServer"
_HEALTH = "HealthCheckServer create_healthcheck_server"
_LAUNCH = "LaunchConfig elastic_launch launch_agent"

_BY_MODULE: dict[str, dict[str, str]] = {
    "elastic": {},
    "elastic.agent": {},
    "elastic.agent.server": {"elastic_core.agent": f"{_AGENT} LocalElasticAgent"},
    "elastic.agent.server.api": {
        "elastic_core.agent": f"{_AGENT} DEFAULT_ROLE",
        "elastic_core.compat.torch": "_get_fq_hostname",
    },
    "elastic.agent.server.local_elastic_agent": {"elastic_core.agent": "LocalElasticAgent"},
    "elastic.agent.server.health_check_server": {"elastic_core.health": _HEALTH},
    "elastic.rendezvous": {"elastic_core.rendezvous": _RENDEZVOUS},
    "elastic.rendezvous.api": {"elastic_core.rendezvous": _RENDEZVOUS},
    "elastic.rendezvous.registry": {"elastic_core.rendezvous": "get_rendezvous_handler"},
    "elastic.rendezvous.dynamic_rendezvous": {"elastic_core.rendezvous": _DYNAMIC},
    "elastic.rendezvous.c10d_rendezvous_backend": {"elastic_c10d": "C10dRendezvousBackend create_backend"},
    "elastic.rendezvous.etcd_rendezvous_backend": {"elastic_etcd": "EtcdRendezvousBackend create_backend"},
    "elastic.rendezvous.etcd_store": {"elastic_etcd": "EtcdStore"},
    "elastic.rendezvous.etcd_server": {"elastic_etcd": "EtcdServer"},
    "elastic.rendezvous.etcd_rendezvous": {"elastic_etcd_legacy": "EtcdRendezvousHandler create_rdzv_handler"},
    "elastic.multiprocessing": {
        "elastic_core.multiprocessing": f"{_LOGS} start_processes",
        "elastic_core.errors": "ProcessFailure",
    },
    "elastic.multiprocessing.api": {"elastic_core.multiprocessing": _LOGS},
    "elastic.multiprocessing.errors": {"elastic_core.multiprocessing": _FAILURES},
    "elastic.events": {"elastic_core.events": f"{_EVENTS} construct_and_record_rdzv_event record record_rdzv_event"},
    "elastic.events.api": {"elastic_core.events": _EVENTS},
    "elastic.metrics": {"elastic_core.metrics": f"{_METRICS} initialize_metrics"},
    "elastic.metrics.api": {"elastic_core.metrics": _METRICS},
    "elastic.timer": {
        "elastic_core.watchdog": f"{_TIMERS} LocalTimerClient LocalTimerServer",
        "elastic_file_timer": _FILE_TIMER,
    },
    "elastic.timer.api": {"elastic_core.watchdog": f"{_TIMERS} RequestQueue"},
    "elastic.timer.local_timer": {
        "elastic_core.watchdog": "LocalTimerClient LocalTimerServer MultiprocessingRequestQueue"
    },
    "elastic.timer.file_based_local_timer": {"elastic_file_timer": _FILE_TIMER},
    "launcher": {"elastic_core.launch": _LAUNCH},
    "launcher.api": {"elastic_core.launch": _LAUNCH, "elastic_core.agent": "WorkerSpec"},
    "run": {"elastic_core.compat.run": "get_args_parser main parse_args run", "elastic_core.launch": _LAUNCH},
}

MODULES: dict[str, dict[str, str]] = {
    f"torch.distributed.{module}": {name: ours for ours, names in homes.items() for name in names.split()}
    for module, homes in _BY_MODULE.items()
}
"""Maps each of torch's modules to its names, and each name to the elastic-core module that defines it."""
