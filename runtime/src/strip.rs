//! Splits a pre-initialised module into code without data and a memory image.
//!
//! Why: an image that the engine maps itself can be reset, copied and put back
//! page by page, which wasmtime's own copy-on-write images do not offer.
//!
//! Invariant: linear memory and the shadow stack pointer are the whole state of
//! the guest. A module in which anything else can change is refused, so that a
//! new guest cannot silently break sessions.

use wasmparser::{DataKind, Operator, Parser, Payload, TypeRef};

/// Largest image, in bytes.
const MAX_IMAGE_BYTES: u64 = 256 << 20;
/// Bytes of a WebAssembly page.
const WASM_PAGE: u64 = 64 << 10;

/// The two parts of a module.
#[derive(Debug)]
pub(crate) struct Stripped {
    /// The module without active data segments.
    pub(crate) wasm: Vec<u8>,
    /// Its memory right after instantiation.
    pub(crate) image: Vec<u8>,
}

/// Splits `wasm`.
///
/// # Errors
/// What in the module is not understood or not allowed, as one sentence.
pub(crate) fn strip(wasm: &[u8]) -> Result<Stripped, String> {
    let image = Image::collect(wasm)?;
    let mut out = wasm_encoder::Module::new();
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(|error| error.to_string())?;
        match &payload {
            Payload::DataCountSection { .. } => {
                out.section(&wasm_encoder::DataCountSection { count: image.passive });
            }
            Payload::DataSection(_) => {
                let mut section = wasm_encoder::DataSection::new();
                for _ in 0..image.passive {
                    section.passive([]);
                }
                out.section(&section);
            }
            Payload::CodeSectionEntry(_) | Payload::CustomSection(_) => {}
            other => {
                if let Some((id, range)) = other.as_section() {
                    let data = wasm.get(range).ok_or("a section lies outside the module")?;
                    out.section(&wasm_encoder::RawSection { id, data });
                }
            }
        }
    }
    Ok(Stripped { wasm: out.finish(), image: image.bytes })
}

/// The memory that active data segments make.
struct Image {
    bytes: Vec<u8>,
    /// Data segments up to the last passive one; all of those are empty.
    passive: u32,
}

impl Image {
    fn collect(wasm: &[u8]) -> Result<Self, String> {
        let mut image = Self { bytes: Vec::new(), passive: 0 };
        let mut imported_globals = 0_u32;
        let mut mutable = Vec::new();
        let mut exported = Vec::new();
        for payload in Parser::new(0).parse_all(wasm) {
            match payload.map_err(|error| error.to_string())? {
                Payload::ImportSection(reader) => {
                    for import in reader.into_imports() {
                        let import = import.map_err(|error| error.to_string())?;
                        if matches!(import.ty, TypeRef::Global(_)) {
                            imported_globals = imported_globals.saturating_add(1);
                        }
                    }
                }
                Payload::MemorySection(reader) => {
                    for memory in reader {
                        image.size(memory.map_err(|error| error.to_string())?.initial)?;
                    }
                }
                Payload::GlobalSection(reader) => {
                    for (index, global) in (imported_globals..).zip(reader) {
                        if global.map_err(|error| error.to_string())?.ty.mutable {
                            mutable.push(index);
                        }
                    }
                }
                Payload::ExportSection(reader) => {
                    for export in reader {
                        let export = export.map_err(|error| error.to_string())?;
                        if export.kind == wasmparser::ExternalKind::Global {
                            exported.push(export.index);
                        }
                    }
                }
                Payload::DataSection(reader) => image.fill(reader)?,
                Payload::CodeSectionEntry(body) => check_code(&body)?,
                Payload::StartSection { .. } => {
                    return Err("it has a start function, which would change the image".to_owned());
                }
                _ => {}
            }
        }
        if mutable.len() != 1 || !mutable.iter().all(|index| exported.contains(index)) {
            return Err("its mutable globals are not exactly one exported stack pointer".to_owned());
        }
        Ok(image)
    }

    fn size(&mut self, pages: u64) -> Result<(), String> {
        let bytes = pages.saturating_mul(WASM_PAGE);
        if !self.bytes.is_empty() || bytes > MAX_IMAGE_BYTES {
            return Err("its memory is larger than 256 MiB, or not its only one".to_owned());
        }
        self.bytes = vec![0; usize::try_from(bytes).map_err(|error| error.to_string())?];
        Ok(())
    }

    fn fill(&mut self, reader: wasmparser::DataSectionReader<'_>) -> Result<(), String> {
        for (index, data) in (1_u32..).zip(reader) {
            let data = data.map_err(|error| error.to_string())?;
            match data.kind {
                DataKind::Active { memory_index: 0, offset_expr } => {
                    let mut operators = offset_expr.get_operators_reader();
                    let Ok(Operator::I32Const { value }) = operators.read() else {
                        return Err("a data segment has no constant address".to_owned());
                    };
                    let start = usize::try_from(value.cast_unsigned()).unwrap_or(usize::MAX);
                    self.bytes
                        .get_mut(start..start.saturating_add(data.data.len()))
                        .ok_or("a data segment lies outside the memory")?
                        .copy_from_slice(data.data);
                }
                DataKind::Passive if data.data.is_empty() => self.passive = index,
                _ => return Err("it has passive data, which is state outside memory".to_owned()),
            }
        }
        Ok(())
    }
}

/// Refuses instructions that change state outside memory and globals.
fn check_code(body: &wasmparser::FunctionBody<'_>) -> Result<(), String> {
    let operators = body.get_operators_reader().map_err(|error| error.to_string())?;
    for operator in operators {
        let name = match operator.map_err(|error| error.to_string())? {
            Operator::TableSet { .. } => "table.set",
            Operator::TableGrow { .. } => "table.grow",
            Operator::TableFill { .. } => "table.fill",
            Operator::TableCopy { .. } => "table.copy",
            Operator::TableInit { .. } => "table.init",
            Operator::ElemDrop { .. } => "elem.drop",
            Operator::MemoryInit { .. } => "memory.init",
            Operator::DataDrop { .. } => "data.drop",
            _ => continue,
        };
        return Err(format!("its code uses {name}, which changes state outside memory"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(body: &str) -> Vec<u8> {
        wat::parse_str(format!("(module (memory (export \"memory\") 1) {body})")).unwrap()
    }

    #[test]
    fn data_moves_into_the_image() {
        let wasm = module(
            r#"(global $sp (mut i32) (i32.const 8)) (export "__fh_g0" (global $sp))
               (data (i32.const 3) "abc") (data (i32.const 65535) "z")"#,
        );
        let stripped = strip(&wasm).unwrap();
        assert_eq!(stripped.image.len(), 65536);
        assert_eq!(&stripped.image[2..7], b"\0abc\0");
        assert_eq!(stripped.image[65535], b'z');
        assert!(strip(&stripped.wasm).unwrap().image.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn state_outside_memory_is_refused() {
        let sp = r#"(global $sp (mut i32) (i32.const 8)) (export "__fh_g0" (global $sp))"#;
        for (body, word) in [
            ("(global $sp (mut i32) (i32.const 8))".to_owned(), "mutable globals"),
            (format!("{sp} (global $x (mut i32) (i32.const 8))"), "mutable globals"),
            (format!("{sp} (data \"passive\")"), "passive"),
            (format!("{sp} (func $f) (start $f)"), "start function"),
            (
                format!("{sp} (table 1 funcref) (func (table.set (i32.const 0) (ref.null func)))"),
                "table.set",
            ),
        ] {
            let error = strip(&module(&body)).unwrap_err();
            assert!(error.contains(word), "{body}: {error}");
        }
    }
}
