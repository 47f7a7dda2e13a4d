//! The properties of `nvidia-cuda-mps-control` on which mpsgate relies, tested on the real program
//! (535 and 550) and on the fake alike.
//!
//! The real half is skipped if the program is missing. Some tests need root.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::disallowed_methods, reason = "tests make what they look at")]

#[path = "contract/client.rs"]
mod client;
#[path = "contract/harness.rs"]
mod harness;
#[path = "contract/program.rs"]
mod program;
#[path = "contract/servers.rs"]
mod servers;
#[path = "contract/supervision.rs"]
mod supervision;
#[path = "contract/trouble.rs"]
mod trouble;

/// Each test once for every named program.
macro_rules! tests_of {
    ($($module:ident $kind:ident $version:literal),* : $tests:tt) => {
        $(tests_of! { @program $module, $kind, $version, $tests })*
    };
    (@program $module:ident, $kind:ident, $version:literal, [$($suite:ident::$test:ident),* $(,)?]) => {
        mod $module {
            $(
                #[test]
                fn $test() {
                    use crate::harness::{Kind, bench, need};
                    crate::$suite::$test(&need!(bench(Kind::$kind, $version)));
                }
            )*
        }
    };
}

tests_of! { real_535 Real 535, real_550 Real 550, fake_535 Fake 535, fake_550 Fake 550: [
    program::makes_its_files_with_known_modes_and_locks_one,
    program::refuses_a_second_daemon,
    program::refusals_come_with_exit_status_0,
    program::reads_values_leniently,
    program::what_control_alone_lets_root_do,
    program::what_another_uid_may_do,
    program::quit_leaves_three_files_and_sigterm_leaves_all,
    program::writes_its_log_to_stdout_only,
    program::unknown_options_look_like_a_missing_daemon,
    program::ends_without_a_word_when_a_socket_path_is_too_long,
    supervision::limits_read_back,
    supervision::starts_detached_with_a_clean_environment,
    supervision::nobody_leases_its_programs_while_it_lives,
    supervision::adopts_what_runs_and_stops_without_a_trace,
    supervision::two_starters_make_one_daemon,
    supervision::an_idle_connection_is_a_wedge_until_it_ends,
    supervision::a_stopped_daemon_is_wedged_and_still_ended,
    supervision::its_files_are_out_of_every_users_reach,
    supervision::a_daemon_outlives_its_holder_and_is_adopted_with_the_next,
    supervision::a_strangers_lock_is_named,
    supervision::many_threads_share_the_channel,
    supervision::a_missing_daemon_is_told_from_a_wedged_one,
    supervision::capabilities_are_probed_without_a_trace,
    supervision::probes_at_once_do_not_answer_for_each_other,
    supervision::a_server_that_dies_is_an_error,
    trouble::a_glance_tells_rest_work_and_stop_without_a_word,
    trouble::a_front_end_that_stays_is_seen_by_its_connection,
    trouble::a_flood_of_connections_is_a_wedge_until_it_ends,
    trouble::a_stopped_server_is_named_as_what_a_daemon_may_wait_for,
    trouble::a_directory_whose_mode_was_changed_has_it_again,
    trouble::a_file_of_the_daemons_that_is_gone_is_named,
    trouble::a_link_in_a_directorys_place_is_named_and_not_followed,
    trouble::a_pipe_directory_that_root_removes_is_named_and_the_daemon_still_ended,
    trouble::a_daemon_without_the_lock_is_left_alone_until_it_is_stopped,
    trouble::a_daemon_whose_lock_was_taken_away_is_never_doubled,
    client::the_real_client_attaches_through_control_alone,
    client::the_real_client_attaches_from_any_namespace_and_as_any_uid,
    client::a_library_of_another_branch_attaches_all_the_same,
    client::what_is_no_library_or_has_no_cuinit_is_named,
    client::the_real_client_goes_on_without_mps_where_nobody_listens,
    client::the_code_alone_does_not_tell_whom_the_real_client_reached,
    client::the_real_client_looks_for_the_servers_region_in_dev_shm,
    servers::a_server_starts_and_is_found_again,
    servers::a_server_comes_also_where_another_front_end_is_connected,
    servers::a_server_of_another_uid_is_named,
    servers::a_server_of_another_uid_that_is_not_ready_is_named_at_once,
    servers::a_client_attaches_through_control_alone_and_gets_the_lower_limit,
    servers::terminate_client_ends_exactly_that_client,
    servers::the_doomed_clients_of_a_card_are_terminated_and_no_others,
    servers::a_control_daemon_that_hangs_ends_a_termination_at_its_deadline,
    servers::an_orphan_server_is_found_and_ended_by_stop,
    servers::no_control_daemon_is_started_beside_an_orphan_server,
    servers::a_process_that_dresses_up_as_a_server_is_none,
    servers::a_client_of_a_wrong_uid_shows_as_pending_in_the_log,
    servers::quit_gives_clients_their_grace_and_no_more,
] }

// The fake does not read the log's FIFO.
tests_of! { real_log_535 Real 535, real_log_550 Real 550: [
    program::garbage_in_the_log_fifo_blocks_a_real_daemon_until_drained,
] }

// 550 brought get_server_status.
tests_of! { real_with_status Real 550, fake_with_status Fake 550: [
    servers::a_server_that_stays_initializing_is_not_ready,
    servers::a_faulted_server_is_reported_until_its_contexts_are_made_again,
    servers::a_server_that_starts_slowly_is_not_taken_for_ended_because_a_line_says_so,
] }
tests_of! { real_without_status Real 535, fake_without_status Fake 535: [
    servers::of_a_driver_that_cannot_be_asked_no_line_of_the_log_makes_a_fault,
] }
