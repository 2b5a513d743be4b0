//! `acl`: writes or checks `src/acl/sys.rs`.

use std::path::Path;

use proc_macro2::TokenStream;
use quote::quote;

use crate::parse::{Source, TARGETS, parse};
use crate::{Outcome, because, check_file, write_file};

/// The header the bindings are made from, below the workspace.
pub const HEADER: &str = "ffi/acl/acl_runtime.h";
const OUTPUT: &str = "src/acl/sys.rs";
const PREFACE: &str =
    "// @generated from ffi/acl/acl_runtime.h by `cargo run -p bindings -- acl`; do not edit.\n\n";

/// Writes the bindings.
pub fn write(root: &Path) -> Outcome<String> {
    write_file(&root.join(OUTPUT), &generate(root)?)
}

/// Fails if the checked-in bindings are not what [`write`] would write.
pub fn check(root: &Path) -> Outcome<String> {
    check_file(&root.join(OUTPUT), &generate(root)?, "acl")
}

/// The bindings as text, after making sure that every target gives the same.
fn generate(root: &Path) -> Outcome<String> {
    let source = Source { header: root.join(HEADER), include: Vec::new(), names: Vec::new() };
    let mut texts = Vec::new();
    for target in TARGETS {
        let file = with_table(parse(&source, target)?)?;
        texts.push(format!("{PREFACE}{}", prettyplease::unparse(&file)));
    }
    let first = texts.swap_remove(0);
    match texts.iter().any(|text| *text != first) {
        true => Err(format!("{HEADER} gives different bindings for {}", TARGETS.join(" and "))),
        false => Ok(first),
    }
}

/// Replaces the linked functions by a table of nullable function pointers, and adds a macro that
/// lists their names, from which the loader fills the table.
fn with_table(file: syn::File) -> Outcome<syn::File> {
    let mut kept = Vec::new();
    let mut fields = Vec::new();
    let mut names = Vec::new();
    for item in file.items {
        let syn::Item::ForeignMod(block) = item else {
            kept.push(item);
            continue;
        };
        for function in block.items {
            let syn::ForeignItem::Fn(function) = function else {
                return Err(because(HEADER, "holds a variable; only functions can be looked up"));
            };
            let (name, inputs, output) = (&function.sig.ident, &function.sig.inputs, &function.sig.output);
            fields.push(quote! { pub #name: Option<unsafe extern "C" fn(#inputs) #output> });
            names.push(name.clone());
        }
    }
    let table: TokenStream = quote! {
        #[derive(Clone, Copy)]
        pub struct Functions { #(#fields),* }

        macro_rules! with_function_names {
            ($then:ident) => { $then! { #(#names),* } };
        }
        pub(super) use with_function_names;
    };
    let table: syn::File = syn::parse2(table).map_err(|error| because("the table", error))?;
    kept.extend(table.items);
    Ok(syn::File { shebang: None, attrs: Vec::new(), items: kept })
}
