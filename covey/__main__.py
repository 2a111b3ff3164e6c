"""`python -m covey` is the command `covey`."""

from covey.cli.overview import main

if __name__ == "__main__":
    main()
