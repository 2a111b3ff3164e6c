"""`python -m covey` is the command `covey`."""

from covey.cli.main import main

if __name__ == "__main__":
    main()
