"""Random pipelines of ordinary operators, each with the loop by hand that is put together of the same templates."""
