//! `convey generate`: manual page and completions, generated from the definition of the command
//! line so that they agree with `--help`.

use std::io;

use clap_complete::{Shell, generate};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use convey_cli::{Cli, Generated, SECTIONS};

/// Returns the manual page, or the completions for a shell.
///
/// # Errors
/// The output cannot be generated.
pub(super) fn generated(kind: Generated) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    match kind {
        Generated::Man => manual(&mut out)?,
        Generated::CompleteBash => generate(Shell::Bash, &mut Cli::definition(), "convey", &mut out),
        Generated::CompleteFish => generate(Shell::Fish, &mut Cli::definition(), "convey", &mut out),
        Generated::CompleteZsh => generate(Shell::Zsh, &mut Cli::definition(), "convey", &mut out),
    }
    Ok(out)
}

/// Writes one page for all commands.
fn manual(out: &mut Vec<u8>) -> io::Result<()> {
    let mut command = Cli::definition();
    command.build();
    let page = Man::new(command.clone()).section("8").manual("System Manager's Manual");
    page.render_title(out)?;
    page.render_name_section(out)?;
    page.render_synopsis_section(out)?;
    page.render_description_section(out)?;
    let mut rest = Roff::new();
    rest.control("SH", ["COMMANDS"]);
    for command in command.get_subcommands() {
        let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
        term(&mut rest, command.get_name(), &about.unwrap_or_default());
    }
    rest.to_writer(out)?;
    page.render_options_section(out)?;
    let mut rest = Roff::new();
    for (title, terms) in SECTIONS {
        rest.control("SH", [title.to_uppercase().as_str()]);
        terms.iter().for_each(|(name, means)| term(&mut rest, name, means));
    }
    rest.to_writer(out)
}

fn term(page: &mut Roff, name: &str, means: &str) {
    page.control("TP", []).text([bold(name)]);
    for (i, paragraph) in means.split("\n\n").enumerate() {
        if i > 0 {
            page.control("IP", []);
        }
        page.text([roman(paragraph)]);
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_manual_has_each_command_option_and_section_of_the_help() {
        let mut page = Vec::new();
        manual(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap().replace("\\-", "-");
        let command = Cli::command();
        let commands = command.get_subcommands().map(|command| format!("\\fB{}\\fR", command.get_name()));
        let options = command.get_opts().filter_map(|option| Some(format!("--{}", option.get_long()?)));
        let sections = SECTIONS.iter().map(|(title, _)| title.to_uppercase());
        for part in commands.chain(options).chain(sections) {
            assert!(page.contains(&part), "no {part} in\n{page}");
        }
    }
}
