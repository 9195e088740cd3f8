//! The sources of a program's tensors: its data files, its references, and data files that the user gives.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use fourfold_ir::text::nearest;
use fourfold_ir::{Module, Tensor, Value};

use super::bind::bind_inputs;
use super::error::DataError;
use super::header::StoredTensor;
use super::parts::{Parts, References};
use super::place::{Place, Source};
use super::reference::{TensorReference, TensorSource};
use super::safetensors_file::SafetensorsFile;
use super::{DataFile, EXPECTED_PREFIX, of_file};
use crate::files::{RangeHash, open_regular};

/// The sources of a program's tensors. Of several tensors with one name, the last counts. Only the tensors of the
/// program are read.
///
/// An input takes its tensor from the last given file that has one of its name, else from its reference, else from the
/// last data file that has one of its name. If the given files have every input, the other sources are not opened.
///
/// An expectation counts only with the inputs that it belongs to. One is stale if a later given file replaces an input
/// of its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataSources {
    /// The data files of the program.
    pub files: Vec<PathBuf>,
    /// The references of the program.
    pub references: Vec<TensorReference>,
    /// The folder of the program, to which the files of references are relative.
    pub folder: PathBuf,
    /// The files that the user gives besides. Their tensors replace those of the other sources.
    pub given: Vec<PathBuf>,
}

/// The tensors to read besides the program's inputs and `expected.NAME`.
#[derive(Clone, Copy, Debug)]
pub enum OtherTensors<'a> {
    /// Every tensor.
    All,
    /// The tensors of these names.
    Named(&'a [&'a str]),
}

impl OtherTensors<'_> {
    fn include(&self, name: &str) -> bool {
        match self {
            OtherTensors::All => true,
            OtherTensors::Named(names) => names.contains(&name),
        }
    }
}

impl DataSources {
    /// Returns true if there is no file and no reference.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.references.is_empty() && self.given.is_empty()
    }

    /// Opens the files that the program needs, and reads their headers.
    ///
    /// # Errors
    /// When a file cannot be read or is invalid, or a reference is for no input of the program.
    pub fn open<'a>(&'a self, module: &'a Module) -> Result<OpenSources<'a>, DataError> {
        let inputs: HashSet<&str> = module.inputs.iter().map(|input| module.name_of(*input)).collect();
        if let Some(unknown) = self.references.iter().find(|it| !inputs.contains(it.input.as_str())) {
            return Err(DataError::NoInput { input: unknown.input.clone() });
        }
        let given = open_all(&self.given)?;
        let is_given = |name: &str| given.iter().any(|file| file.find(name).is_some());
        let has_all = !inputs.is_empty() && inputs.iter().all(|name| is_given(name));
        let files = if has_all { Vec::new() } else { open_all(&self.files)? };
        let mut references = HashMap::new();
        for &input in &module.inputs {
            let name = module.name_of(input);
            let of_input: Vec<_> = self.references.iter().filter(|it| it.input == name).collect();
            if !of_input.is_empty() {
                references.insert(name, References::new(module, input, of_input)?);
            }
        }
        let needed = references.values().flat_map(References::iter).filter(|it| !is_given(&it.input));
        let referred = Referred::open(&self.folder, needed)?;
        Ok(OpenSources { folder: &self.folder, module, inputs, references, files, given, referred })
    }

    /// Opens and reads the sources, without drawn tensors.
    ///
    /// # Errors
    /// As [`DataSources::open`] and [`OpenSources::read`].
    pub fn read(
        &self,
        module: &Module,
        symbols: &[(String, u64)],
        other: OtherTensors<'_>,
    ) -> Result<DataFile, DataError> {
        self.open(module)?.read(symbols, other, HashMap::new())
    }
}

/// The open files of a program's tensors.
#[derive(Debug)]
pub struct OpenSources<'a> {
    folder: &'a Path,
    module: &'a Module,
    inputs: HashSet<&'a str>,
    references: HashMap<&'a str, References<'a>>,
    files: Vec<SafetensorsFile>,
    given: Vec<SafetensorsFile>,
    referred: Referred,
}

impl OpenSources<'_> {
    /// The inputs without a tensor, in order.
    pub fn missing(&self) -> Vec<&str> {
        let layers = self.layers();
        let names = self.module.inputs.iter().map(|input| self.module.name_of(*input));
        names.filter(|name| !self.references.contains_key(name) && layers.find(name).is_none()).collect()
    }

    /// The files that the user gives, in order.
    pub fn given(&self) -> &[SafetensorsFile] {
        &self.given
    }

    /// The inputs whose only source is a given file, in order.
    pub fn only_given(&self) -> Vec<&str> {
        let has = |files: &[SafetensorsFile], name: &str| files.iter().any(|file| file.find(name).is_some());
        let names = self.module.inputs.iter().map(|input| self.module.name_of(*input));
        let is_only_given = |name: &&str| {
            !self.references.contains_key(name) && !has(&self.files, name) && has(&self.given, name)
        };
        names.filter(is_only_given).collect()
    }

    /// Checks that the tensor of each reference exists and fits its input, without reading it.
    ///
    /// # Errors
    /// As [`OpenSources::read`].
    pub fn check_references(&self) -> Result<(), DataError> {
        let layers = self.layers();
        for &input in &self.module.inputs {
            let Some(references) = self.references.get(self.module.name_of(input)) else { continue };
            match references.whole() {
                Some(whole) => drop(self.place(whole, &layers)?.0.fit(self.module, input)?),
                None => drop(self.parts(input, references, &layers)?.0),
            }
        }
        Ok(())
    }

    fn layers(&self) -> Layers<'_> {
        Layers { files: &self.files, given: &self.given }
    }

    /// Reads the tensors. `symbols` are given extents, as in [`fourfold_ir::bind::bind_given`], and `drawn` the tensors
    /// of other inputs. An input without a tensor is no error here.
    ///
    /// # Errors
    /// When a file cannot be read, a reference names a tensor or bytes that do not exist, or a tensor does not fit its
    /// input's type. Also when extents that follow from other inputs are undetermined.
    pub fn read(
        &self,
        symbols: &[(String, u64)],
        other: OtherTensors<'_>,
        drawn: HashMap<String, Tensor>,
    ) -> Result<DataFile, DataError> {
        let (module, layers, mut drawn) = (self.module, self.layers(), drawn);
        let (mut places, mut replaced, mut has_references) = (Vec::new(), Vec::new(), false);
        for &input in &module.inputs {
            let name = module.name_of(input);
            let is_given = layers.given.iter().any(|file| file.find(name).is_some());
            let references = self.references.get(name);
            let (place, layer) = match references.filter(|_| !is_given).map(|all| (all, all.whole())) {
                Some((_, Some(whole))) => {
                    self.place(whole, &layers).map(|(place, layer)| (Some(place), layer))?
                }
                Some((all, None)) => {
                    let (parts, layer) = self.parts(input, all, &layers)?;
                    drawn.insert(name.to_owned(), parts.read(module, input)?);
                    (None, layer)
                }
                None => match layers.find(name) {
                    Some(found) => (Some(Place::of(found.file, found.tensor)), found.layer),
                    None => continue,
                },
            };
            places.extend(place.map(|place| (input, place)));
            has_references |= references.is_some() && !is_given;
            let referred = references.into_iter().flat_map(References::iter);
            let firsts = referred.filter_map(|reference| layers.first_of(reference));
            let first = firsts.chain(layers.first(name)).min().filter(|first| *first < layer);
            if let (Some(first), Some(by)) = (first, layers.given_at(layer)) {
                replaced.push(Replaced { input: name.to_owned(), first, layer, by: by.path().to_owned() });
            }
        }
        let mut data = DataFile { files: layers.paths(), has_references, ..DataFile::default() };
        data.files.extend(self.referred.paths());
        data.inputs = bind_inputs(&layers.paths(), module, symbols, places, drawn)?;
        layers.read_others(&self.inputs, &replaced, other, &mut data)?;
        Ok(data)
    }

    /// Finds the tensors of the parts of an input, and their highest layer.
    fn parts<'a>(
        &'a self,
        input: Value,
        references: &References<'a>,
        layers: &Layers<'a>,
    ) -> Result<(Parts<'a>, usize), DataError> {
        let mut highest = 0;
        let places = references.iter().map(|reference| {
            let (place, layer) = self.place(reference, layers)?;
            highest = highest.max(layer);
            Ok(place)
        });
        Ok((Parts::fit(self.module, input, places)?, highest))
    }

    /// Finds the tensor of a reference, and its layer.
    fn place<'a>(
        &'a self,
        reference: &'a TensorReference,
        layers: &Layers<'a>,
    ) -> Result<(Place<'a>, usize), DataError> {
        let input = reference.input.clone();
        let encoding = reference.encoding;
        let (name, slice, file) = match &reference.source {
            TensorSource::Bytes { start, end, file, hash } => {
                let path = self.folder.join(file);
                let (path, (file, length)) = self.referred.bytes(&path).ok_or_else(|| not_open(&path))?;
                let (start, end, length, hash) = (*start, *end, *length, *hash);
                if start > end || end > length {
                    return Err(match hash {
                        Some(_) => DataError::changed(path, &input, start, end),
                        None => DataError::NoBytes { path: path.to_owned(), input, start, end, length },
                    });
                }
                return Ok((Place { source: Source::Bytes { path, file, start, end, hash }, encoding }, 0));
            }
            TensorSource::Tensor { name, slice, file } => (name, slice, file),
        };
        let files: Vec<&SafetensorsFile> = match file {
            Some(file) => {
                let path = self.folder.join(file);
                vec![self.referred.safetensors.get(&path).ok_or_else(|| not_open(&path))?]
            }
            None => layers.all().collect(),
        };
        let found = match file {
            Some(_) => files[0].find(name).map(|tensor| (files[0], tensor, 0)),
            None => layers.find(name).map(|found| (found.file, found.tensor, found.layer)),
        };
        match found {
            Some((file, tensor, layer)) => {
                Ok((Place { source: Source::Stored { file, tensor, slice }, encoding }, layer))
            }
            None if files.is_empty() => Err(DataError::NoDataFile { tensor: name.clone(), input }),
            None => {
                let names = files.iter().flat_map(|file| file.tensors()).map(|tensor| tensor.name.as_str());
                let nearest = nearest(name, names).map(str::to_owned);
                let files = files.iter().map(|file| file.path().to_owned()).collect();
                Err(DataError::NoTensor { files, tensor: name.clone(), input, nearest })
            }
        }
    }
}

fn open_all(paths: &[PathBuf]) -> Result<Vec<SafetensorsFile>, DataError> {
    paths.iter().map(|path| SafetensorsFile::open(path)).collect()
}

fn not_open(path: &Path) -> DataError {
    DataError::Read { path: path.to_owned(), source: std::io::Error::other("it was not opened") }
}

/// The open files of references, each opened once.
#[derive(Debug, Default)]
struct Referred {
    safetensors: HashMap<PathBuf, SafetensorsFile>,
    bytes: HashMap<PathBuf, (File, u64)>,
}

impl Referred {
    fn open<'a>(
        folder: &Path,
        references: impl Iterator<Item = &'a TensorReference>,
    ) -> Result<Referred, DataError> {
        let mut referred = Referred::default();
        // Tensors of one file share the hash of its structure, which is compared once.
        let mut hashed = HashSet::new();
        for reference in references {
            let Some(file) = reference.file() else { continue };
            let path = folder.join(file);
            match reference.source {
                TensorSource::Tensor { .. } if !referred.safetensors.contains_key(&path) => {
                    referred.safetensors.insert(path.clone(), SafetensorsFile::open(&path)?);
                }
                TensorSource::Bytes { .. } if !referred.bytes.contains_key(&path) => {
                    let opened = open_regular(&path).map_err(|error| of_file(&path, error))?;
                    referred.bytes.insert(path.clone(), opened);
                }
                _ => {}
            }
            if let TensorSource::Bytes { start, end, hash: Some(hash), .. } = reference.source
                && (hash.start, hash.end) != (start, end)
                && hashed.insert((path.clone(), hash))
                && !referred.has(&path, hash)?
            {
                return Err(DataError::changed(&path, &reference.input, hash.start, hash.end));
            }
        }
        Ok(referred)
    }

    fn bytes(&self, path: &Path) -> Option<(&Path, &(File, u64))> {
        self.bytes.get_key_value(path).map(|(path, opened)| (path.as_path(), opened))
    }

    /// Returns true if the bytes of an open file have this hash.
    fn has(&self, path: &Path, hash: RangeHash) -> Result<bool, DataError> {
        let (path, (file, length)) = self.bytes(path).ok_or_else(|| not_open(path))?;
        if hash.start > hash.end || hash.end > *length {
            return Ok(false);
        }
        let found = RangeHash::of(file, hash.start, hash.end);
        Ok(found.map_err(|source| DataError::Read { path: path.to_owned(), source })? == hash)
    }

    fn paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = self.safetensors.keys().chain(self.bytes.keys()).cloned().collect();
        paths.sort();
        paths.dedup();
        paths
    }
}

/// An input that a given file takes from the sources before it.
struct Replaced {
    input: String,
    /// The first layer that has the input.
    first: usize,
    /// The layer of its tensor.
    layer: usize,
    /// The file of that layer.
    by: PathBuf,
}

/// The data files in order. The program's own are layer 0, and each given file is a layer above.
struct Layers<'a> {
    files: &'a [SafetensorsFile],
    given: &'a [SafetensorsFile],
}

struct Found<'a> {
    file: &'a SafetensorsFile,
    tensor: &'a StoredTensor,
    layer: usize,
}

impl<'a> Layers<'a> {
    fn all(&self) -> impl DoubleEndedIterator<Item = &'a SafetensorsFile> {
        self.files.iter().chain(self.given)
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.all().map(|file| file.path().to_owned()).collect()
    }

    /// Returns the files with their layers.
    fn numbered(&self) -> impl DoubleEndedIterator<Item = (usize, &'a SafetensorsFile)> {
        let files = self.files.iter().map(|file| (0, file));
        files.chain(self.given.iter().enumerate().map(|(index, file)| (index + 1, file)))
    }

    /// Returns the given file of a layer.
    fn given_at(&self, layer: usize) -> Option<&'a SafetensorsFile> {
        self.given.get(layer.checked_sub(1)?)
    }

    /// Finds the last tensor of a name.
    fn find(&self, name: &str) -> Option<Found<'a>> {
        let find = |(layer, file): (usize, &'a SafetensorsFile)| {
            file.find(name).map(|tensor| Found { file, tensor, layer })
        };
        self.numbered().rev().find_map(find)
    }

    /// Returns the first layer with a tensor of this name.
    fn first(&self, name: &str) -> Option<usize> {
        self.numbered().find(|(_, file)| file.find(name).is_some()).map(|(layer, _)| layer)
    }

    /// Returns the first layer with the tensor of a reference.
    fn first_of(&self, reference: &TensorReference) -> Option<usize> {
        match &reference.source {
            TensorSource::Tensor { name, file: None, .. } => self.first(name),
            _ => Some(0),
        }
    }

    /// Reads the tensors that are no inputs.
    fn read_others(
        &self,
        inputs: &HashSet<&str>,
        replaced: &[Replaced],
        other: OtherTensors<'_>,
        data: &mut DataFile,
    ) -> Result<(), DataError> {
        let mut last: BTreeMap<&str, Found<'a>> = BTreeMap::new();
        for (layer, file) in self.numbered() {
            last.extend(
                file.tensors().iter().map(|tensor| (tensor.name.as_str(), Found { file, tensor, layer })),
            );
        }
        for (name, found) in last {
            let expected = name.strip_prefix(EXPECTED_PREFIX);
            if inputs.contains(name) || (expected.is_none() && !other.include(name)) {
                continue;
            }
            // An input of the expectation's layer, or of one below, was replaced above.
            let stale = replaced.iter().find(|it| it.first <= found.layer && found.layer < it.layer);
            if let Some(stale) = stale {
                let (file, by) = (found.file.path().display(), stale.by.display());
                let reason =
                    format!("`{name}` of {file} is not compared: {by} replaces the input %{}", stale.input);
                data.stale.insert(name.to_owned(), reason);
                continue;
            }
            let tensor = found.file.read(found.tensor)?;
            match expected {
                Some(name) => data.expected.push((name.to_owned(), tensor)),
                None => {
                    data.other.insert(name.to_owned(), tensor);
                }
            }
        }
        Ok(())
    }
}

impl<'a> Place<'a> {
    fn of(file: &'a SafetensorsFile, tensor: &'a StoredTensor) -> Place<'a> {
        Place { source: Source::Stored { file, tensor, slice: &[] }, encoding: None }
    }
}
