"""Who is notified: the observers of purgatories, timers and trackers, and how they are notified."""
