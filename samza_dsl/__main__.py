"""The command line as `python -m samza_dsl`."""

from samza_dsl.cli.main import main

if __name__ == "__main__":
    main()
