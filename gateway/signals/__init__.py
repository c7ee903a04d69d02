"""What operators see beside the log and the counters: spans, durations, ages, and how they are exported."""
