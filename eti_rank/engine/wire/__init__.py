"""The only contract between an engine and our plugin inside SGLang's processes.

Four things cross: the plugin's configuration (environment, once per process), parameters of a request
(``sampling_params.custom_params``), and, in ``meta_info``, the stamp and a report per generated token.
All are JSON.
"""

from eti_rank.engine.wire.configuration import (
    ATTENTION,
    KEY,
    PLUGIN_MODULE,
    PLUGIN_VARIABLE,
    SAMPLING,
    SCHEDULING,
    TELEMETRY,
    VERSION,
    PluginConfig,
    SchedulingConfig,
)
from eti_rank.engine.wire.decoding import (
    DecodingControl,
    PruningControl,
    TemperatureControl,
    TokenReport,
)
from eti_rank.engine.wire.stamp import REPORTS_KEY, Stamp, check_stamp, decode_reports, encode_reports
from eti_rank.engine.wire.step import StepParams

__all__ = [
    "ATTENTION",
    "KEY",
    "PLUGIN_MODULE",
    "PLUGIN_VARIABLE",
    "REPORTS_KEY",
    "SAMPLING",
    "SCHEDULING",
    "TELEMETRY",
    "VERSION",
    "DecodingControl",
    "PluginConfig",
    "PruningControl",
    "SchedulingConfig",
    "Stamp",
    "StepParams",
    "TemperatureControl",
    "TokenReport",
    "check_stamp",
    "decode_reports",
    "encode_reports",
]
