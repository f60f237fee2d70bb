"""`python -m compile_api` is the command `compile-api`."""

from compile_api.command_line import main

main(prog_name="compile-api")
