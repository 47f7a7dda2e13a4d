//! The commands as they are written.

use clap::CommandFactory;

use super::*;

#[test]
fn the_definition_holds_together() {
    Cli::command().debug_assert();
}

/// Manual pages and completions are made of these texts.
#[test]
fn every_command_and_argument_says_what_it_is() {
    fn look(name: &str, command: &clap::Command) {
        assert!(command.get_about().is_some(), "{name} has no short text");
        assert!(command.get_long_about().is_some(), "{name} has no long text");
        let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        assert!(text.contains(&format!("  {name}")), "{name} has no example: {text:?}");
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{name}: {} has no text", argument.get_id());
        }
        for command in command.get_subcommands() {
            look(&format!("{name} {}", command.get_name()), command);
        }
    }
    for command in Cli::command().get_subcommands() {
        look(&format!("mpsgate {}", command.get_name()), command);
    }
}

#[test]
fn a_gpu_is_named_by_index_or_uuid() {
    assert_eq!(gpu("0"), Ok("0".to_owned()));
    assert_eq!(gpu("007"), Ok("7".to_owned()));
    let uuid = "GPU-5D5BA0D6-d33d-2b2c-524d-9e3d8d2b8a77";
    assert_eq!(gpu(uuid), Ok("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77".to_owned()));
    for bad in ["", "-1", "all", "GPU-1", "0,1", "99999999999"] {
        assert!(gpu(bad).is_err(), "{bad}");
    }
}
