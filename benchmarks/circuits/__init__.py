"""Models whose circuit is known, and how often the methods of jarilab name the right heads in them.

    cd benchmarks
    python -m circuits --seeds 0 20                                # develop: prints the table
    python -m circuits --seeds 100 120 --json MEASURED.json        # publish, once
    python -m circuits.others --seeds 100 120 --json OTHERS.json   # TransformerLens, where it is installed
    python -m circuits.trained --json TRAINED.json                 # trains five models and compares there
    python -m circuits.backups --seeds 100 120 --json BACKUPS.json # why some backups do not wake up
    python -m circuits.page --jarilab MEASURED.json --others OTHERS.json --trained TRAINED.json --backups BACKUPS.json

The last command keeps the measurements and writes docs/results/circuits.md.

`families` describes the circuits, `tasks` their examples, `hosts` and `planting` put them into models, `expected` has
the right answers, `scoring` runs the methods and compares.
"""
