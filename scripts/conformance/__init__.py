"""Conformance suites for your own components: do they keep the rules of their conversation?

    from pageant.scripts.conformance import check_block_manager
    check_block_manager(MyBlocks)             # AssertionError, naming the rule, if it does not

or `pageant conformance blocks my_lab.blocks:MyBlocks`. Actors are run as they are, in a node of this
process, and seen through their messages only.
"""

from pageant.scripts.conformance.blocks import check_block_manager
from pageant.scripts.conformance.detokenizer import check_detokenizer
from pageant.scripts.conformance.drafter import check_drafter
from pageant.scripts.conformance.executor import check_executor
from pageant.scripts.conformance.grammar import check_grammar
from pageant.scripts.conformance.policy import check_policy
from pageant.scripts.conformance.pool import check_pool
from pageant.scripts.conformance.report import SUITES, Report, run
from pageant.scripts.conformance.scheduler import check_scheduler
from pageant.scripts.conformance.tokenizer import check_tokenizer

__all__ = [
    "SUITES",
    "Report",
    "check_block_manager",
    "check_detokenizer",
    "check_drafter",
    "check_executor",
    "check_grammar",
    "check_policy",
    "check_pool",
    "check_scheduler",
    "check_tokenizer",
    "run",
]
