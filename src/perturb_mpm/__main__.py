"""``python -m perturb_mpm``: the command, where the folder of scripts is not on the path."""

from perturb_mpm.cli import main

if __name__ == "__main__":
    main()
