"""What a policy would do, found out without doing it: its tests, its shadow, replays and single decisions."""
