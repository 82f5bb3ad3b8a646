"""For PyInstaller: the stores of a relay, which are imported by name, and the files beside modules."""

from PyInstaller.utils.hooks import collect_data_files

hiddenimports = [f"purgatory.relay.{name}" for name in ("_file", "_redis", "_postgresql", "_nats")]
datas = collect_data_files("purgatory", includes=["**/*.html", "**/*.css", "**/*.js", "**/*.sql"])
