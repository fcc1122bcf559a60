"""The attack: damaged files, odd arrays, kills, full disks, hostile requests; for a given time."""
