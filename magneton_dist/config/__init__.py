"""What an audit is: the models behind `config.yaml`, how a file becomes one, and the plan of its runs."""

from magneton_dist.config.load import load
from magneton_dist.config.models import AuditConfig, Capture, Compare, Diagnose, Energy, Job, Torchrun, seconds_of
from magneton_dist.config.placeholders import expand
from magneton_dist.config.plan import Run, command_line, environment, plan, schedule

__all__ = [
    "AuditConfig", "Capture", "Compare", "Diagnose", "Energy", "Job", "Run", "Torchrun",
    "command_line", "environment", "expand", "load", "plan", "schedule", "seconds_of",
]  # fmt: skip
