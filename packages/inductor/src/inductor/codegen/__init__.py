"""Turns schedules into machine code and call programs; decides nothing that a schedule has not decided."""
