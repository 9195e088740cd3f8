//! CUDA toolkits on this machine, without running their programs.

use std::path::{Path, PathBuf};

use super::cache::cache_folder;
use super::provision::provisioned_folder;
use super::tree;
use crate::environment::Environment;

/// The folders of CUDA toolkits that [`locate`](super::locate) would consider, in its order. They need not exist or
/// have a compiler.
pub(crate) fn toolkit_roots(environment: &Environment) -> Vec<PathBuf> {
    let of_nvcc = |nvcc: &Path| {
        let real = nvcc.canonicalize().unwrap_or_else(|_| nvcc.to_owned());
        real.parent().and_then(Path::parent).map(Path::to_owned)
    };
    let of_toolchain = |folder: &Path| folder.join(tree::CUDA);
    let named = environment.fourfold_nvcc.as_ref().map(Path::new).and_then(of_nvcc);
    let carried = environment.fourfold_toolchain.as_ref().map(Path::new).map(of_toolchain);
    let home = environment.cuda_home.as_ref().map(PathBuf::from);
    let on_path = environment.find_program("nvcc").and_then(|nvcc| of_nvcc(&nvcc));
    let provisioned = cache_folder(environment).ok().map(|cache| of_toolchain(&provisioned_folder(&cache)));
    let roots = [named, carried, home, on_path, provisioned].into_iter().flatten();
    roots.map(|root| std::path::absolute(&root).unwrap_or(root)).collect()
}
