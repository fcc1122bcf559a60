"""The attack: damaged files, odd arrays, kills, full disks, hostile requests; for a given time."""

from lab.torture.attack import Attack, Finding, Outcome, run_attack

__all__ = ["Attack", "Finding", "Outcome", "run_attack"]
