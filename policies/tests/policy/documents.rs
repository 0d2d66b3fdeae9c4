//! The presets and every example of the documentation.

use fumehood_policies::*;

const PAGE: &str = include_str!("../../../docs/policy.md");

#[test]
fn presets_are_good() {
    for preset in PRESETS {
        let file =
            PolicyFile::parse(preset.text, preset.name).unwrap_or_else(|errors| panic!("{errors}"));
        assert!(file.examples().len() >= 5, "{}", preset.name);
        assert!(file.unsupported_sections().is_empty(), "{}", preset.name);
        assert!(PAGE.contains(&format!("`{}`", preset.name)));
    }
    assert!(preset("strict").is_some() && preset("lax").is_none());
}

#[test]
fn every_example_of_the_page_parses() {
    let blocks: Vec<&str> =
        PAGE.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 8, "{}", blocks.len());
    for block in blocks {
        let text = if block.contains("version = 1") {
            block.to_owned()
        } else {
            format!("version = 1\n{block}")
        };
        PolicyFile::parse(&text, "example").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    }
}

#[test]
fn every_refused_example_of_the_page_is_refused() {
    let blocks: Vec<&str> = PAGE
        .split("```toml refused\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let (text, said) = block.split_once("# says: ").unwrap();
        let errors = PolicyFile::parse(text, "policy.toml").unwrap_err();
        assert_eq!(errors.to_string(), said.trim());
    }
}

#[test]
fn the_page_has_every_number_name_and_section() {
    for number in BUDGET_NUMBERS {
        let shown = |value: u64| {
            let (whole, part) = (value / number.scale, value % number.scale);
            assert_eq!(part, 0);
            whole.to_string()
        };
        let [small, default, large] = number.presets.map(shown);
        let row = format!("| `{}` | {small} | {default} | {large} |", number.key);
        assert!(PAGE.contains(&row), "the page lacks {row}");
    }
    for name in FS_OPERATIONS {
        assert!(PAGE.contains(&format!("`{name}`")), "{name}");
    }
    for section in SECTIONS {
        assert!(
            PAGE.contains(&format!("`{section}")) || PAGE.contains(&format!("[{section}")),
            "{section}"
        );
    }
}
