//! What a header declares, in a form that two headers can be compared in.

use std::collections::BTreeMap;

use quote::ToTokens;

/// Declarations by name; each text is equal exactly if the two sides can be used alike.
#[derive(Default)]
pub struct Declarations {
    /// Functions: the types of the arguments and of the result. Names of arguments do not count.
    pub functions: BTreeMap<String, String>,
    /// Structs, unions and other names of types: fields and what they stand for.
    pub types: BTreeMap<String, String>,
    /// Size, alignment and field offsets of structs and unions.
    pub layouts: BTreeMap<String, Vec<String>>,
    /// Constants and values of enumerations: the value. Its integer type does not count.
    pub constants: BTreeMap<String, String>,
}

impl Declarations {
    /// Takes the declarations out of what bindgen wrote.
    pub fn of(file: &syn::File) -> Self {
        let mut found = Self::default();
        for item in &file.items {
            match item {
                syn::Item::ForeignMod(block) => block.items.iter().for_each(|item| found.function(item)),
                syn::Item::Type(item) => found.add_type(&item.ident, &item.ty),
                syn::Item::Struct(item) => found.add_type(&item.ident, &item.fields),
                syn::Item::Union(item) => found.add_type(&item.ident, &item.fields),
                syn::Item::Const(item) if item.ident == "_" => found.layout(&item.expr),
                syn::Item::Const(item) => {
                    found.constants.insert(item.ident.to_string(), value_of(&item.expr));
                }
                _ => {}
            }
        }
        found
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        self.functions.keys().chain(self.types.keys()).chain(self.constants.keys()).cloned().collect()
    }

    fn add_type(&mut self, name: &syn::Ident, what: &impl ToTokens) {
        self.types.insert(name.to_string(), text_of(what));
    }

    fn function(&mut self, item: &syn::ForeignItem) {
        let syn::ForeignItem::Fn(function) = item else { return };
        let arguments: Vec<String> = function
            .sig
            .inputs
            .iter()
            .map(|argument| match argument {
                syn::FnArg::Typed(argument) => text_of(&argument.ty),
                syn::FnArg::Receiver(_) => "self".to_owned(),
            })
            .collect();
        let text = format!("({}) {}", arguments.join(", "), text_of(&function.sig.output));
        self.functions.insert(function.sig.ident.to_string(), text);
    }

    /// bindgen writes one block of checks a type: `["Size of T"][size_of::<T>() - 8usize];`
    fn layout(&mut self, block: &syn::Expr) {
        let syn::Expr::Block(block) = block else { return };
        for statement in &block.block.stmts {
            let syn::Stmt::Expr(syn::Expr::Index(check), _) = statement else { continue };
            let (syn::Expr::Array(label), syn::Expr::Binary(difference)) = (&*check.expr, &*check.index)
            else {
                continue;
            };
            let label = text_of(&label.elems).trim_matches('"').to_owned();
            let name = label.rsplit([' ', ':']).find(|word| self.types.contains_key(*word));
            let name = name.unwrap_or(&label).to_owned();
            self.layouts.entry(name).or_default().push(format!("{label} = {}", value_of(&difference.right)));
        }
    }
}

/// C's own integers and those of `stdint.h` that are the same on every 64-bit Linux.
const SAME: [(&str, &str); 6] = [
    (":: core :: ffi :: c_int", "i32"),
    (":: core :: ffi :: c_uint", "u32"),
    (":: core :: ffi :: c_longlong", "i64"),
    (":: core :: ffi :: c_ulonglong", "u64"),
    (":: core :: ffi :: c_long", "i64"),
    (":: core :: ffi :: c_ulong", "u64"),
];

fn text_of(what: &impl ToTokens) -> String {
    let text = what.to_token_stream().to_string();
    SAME.iter().fold(text, |text, (from, to)| text.replace(from, to))
}

/// A literal without its integer suffix.
fn value_of(expression: &syn::Expr) -> String {
    match expression {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => number.base10_digits().to_owned(),
        other => text_of(other),
    }
}
