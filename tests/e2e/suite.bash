# suite.bash: the default set-up: one node for all tests of a file, which each test leaves without
# containers and with all memory free. A file defines after `load suite` what it does otherwise.
# bats reads a file's top level again for setup_file and for each test: nothing is loaded in
# functions.
# shellcheck shell=bash

# shellcheck source=tests/e2e/mpsgate.bash
source "${BASH_SOURCE[0]%/*}/mpsgate.bash"

setup_file() { node_start; }
teardown_file() { node_stop; }
teardown() {
  explain_failure
  node_reset
}
