"""The wheel alone: `WheelTimer`, `timeout` and `wait_for` as in asyncio, `IdleTracker`."""
