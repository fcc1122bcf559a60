"""The attack: damaged files, odd arrays, kills, full disks, hostile requests; for a given time."""

from lab.torture.attack import Attack, Finding, Outcome, attacked

__all__ = ["Attack", "Finding", "Outcome", "attacked"]
