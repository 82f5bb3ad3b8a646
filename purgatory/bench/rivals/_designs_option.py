"""The option that chooses designs."""

import argparse

from purgatory.bench.rivals.designs import DESIGNS, Listed


def add_designs_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--design``, which may be repeated. By default all designs are measured."""
    parser.add_argument(
        "--design",
        dest="designs",
        action=_Designs,
        default=DESIGNS,
        choices=[design.name for design in DESIGNS],
        help="only this design; may be repeated. " + "; ".join(f"{design.name}: {design.summary}" for design in DESIGNS),
    )


class _Designs(argparse.Action):
    """Collects the designs that are named, in place of the default."""

    def __call__(self, _parser: object, namespace: argparse.Namespace, name: object, _option: object = None) -> None:
        chosen: list[Listed] = [] if namespace.designs is DESIGNS else namespace.designs
        namespace.designs = [*chosen, *(design for design in DESIGNS if design.name == name and design not in chosen)]
