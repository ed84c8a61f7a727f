package runtime

// A run drops the caller's variables that point programs at software of the host, because the image
// has its own. An entry of these tables is a name, or the beginning of names if it ends with "*". The
// tables are sorted by bytes. docs/run.md lists them.

// packageVariables select packages, plugins and data of interpreters and libraries.
var packageVariables = [...]string{
	"BUNDLER_*", "BUNDLE_*", "CONDA_*", "DOTNET_ROOT", "ECCODES_DEFINITION_PATH",
	"ECCODES_SAMPLES_PATH", "ESMFMKFILE", "GDAL_DATA", "GDAL_DRIVER_PATH", "GDK_PIXBUF_MODULEDIR",
	"GDK_PIXBUF_MODULE_FILE", "GEM_HOME", "GEM_PATH", "GHC_PACKAGE_PATH", "GIO_EXTRA_MODULES",
	"GIO_MODULE_DIR", "GI_TYPELIB_PATH", "GOROOT", "GSETTINGS_SCHEMA_DIR", "GST_PLUGIN_*",
	"GTK_DATA_PREFIX", "GTK_EXE_PREFIX", "GTK_IM_MODULE_FILE", "GTK_PATH", "HDF5_PLUGIN_PATH",
	"JULIA_BINDIR", "JULIA_DEPOT_PATH", "JULIA_LOAD_PATH", "JULIA_PROJECT", "JUPYTERLAB_DIR",
	"JUPYTER_CONFIG_PATH", "JUPYTER_PATH", "LUA_*", "MAMBA_*", "NODE_OPTIONS", "NODE_PATH",
	"NPM_CONFIG_PREFIX", "NVM_*", "OCAMLPATH", "OPENSSL_ENGINES", "OPENSSL_MODULES", "PERL5DB",
	"PERL5LIB", "PERL5OPT", "PERLLIB", "PERL_LOCAL_LIB_ROOT", "PERL_MB_OPT", "PERL_MM_OPT", "PHPRC",
	"PHP_INI_SCAN_DIR", "PROJ_DATA", "PROJ_LIB", "PYENV_*", "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON",
	"PYTHONEXECUTABLE", "PYTHONHOME", "PYTHONPATH", "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX",
	"PYTHONSTARTUP", "PYTHONUSERBASE", "QML2_IMPORT_PATH", "QML_IMPORT_PATH", "QTDIR",
	"QT_PLUGIN_PATH", "QT_QPA_PLATFORM_PLUGIN_PATH", "RBENV_*", "RETICULATE_PYTHON", "RUBYLIB",
	"RUBYOPT", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "R_DOC_DIR", "R_ENVIRON", "R_ENVIRON_USER", "R_HOME",
	"R_INCLUDE_DIR", "R_LIBS", "R_LIBS_SITE", "R_LIBS_USER", "R_PROFILE", "R_PROFILE_USER",
	"R_SHARE_DIR", "SPARK_HOME", "TCLLIBPATH", "TCL_LIBRARY", "TK_LIBRARY", "UDUNITS2_XML_PATH",
	"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "XML_CATALOG_FILES", "_CE_*", "_CONDA_*", "npm_config_prefix",
}

// fileVariables select libraries, headers, tools and modules of the host. A run with [Options.Only]
// keeps them, because it shows the host's files.
var fileVariables = [...]string{
	"ACLOCAL_PATH", "BASH_ENV", "BASH_FUNC__module_raw%%", "BASH_FUNC_ml%%", "BASH_FUNC_module%%",
	"BASH_FUNC_module()", "BASH_FUNC_scl%%", "BASH_FUNC_switchml%%", "BASH_FUNC_which%%", "CLASSPATH",
	"CMAKE_INCLUDE_PATH", "CMAKE_LIBRARY_PATH", "CMAKE_PREFIX_PATH", "CMAKE_PROGRAM_PATH",
	"COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT",
	"C_INCLUDE_PATH", "FI_PROVIDER_PATH", "FONTCONFIG_FILE", "FONTCONFIG_PATH", "FPATH",
	"GCC_EXEC_PREFIX", "GCONV_PATH", "GIT_EXEC_PATH", "INFOPATH", "I_MPI_ROOT", "JAVA_HOME",
	"JDK_HOME", "JRE_HOME", "LD_*", "LESSCLOSE", "LESSOPEN", "LIBGL_DRIVERS_PATH", "LIBRARY_PATH",
	"LMOD_*", "LOADEDMODULES", "LOCPATH", "M2_HOME", "MANPATH", "MAVEN_HOME", "MODULEPATH",
	"MODULEPATH_*", "MODULERCFILE", "MODULESHOME", "MODULES_*", "MODULE_VERSION",
	"MODULE_VERSION_STACK", "OBJC_INCLUDE_PATH", "OPAL_PREFIX", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_PATH",
	"ROCM_PATH", "SPACK_ENV", "SPACK_LOADED_HASHES", "SPACK_PYTHON", "SPACK_ROOT", "TZDIR",
	"VIMRUNTIME", "XDG_CONFIG_DIRS", "XDG_DATA_DIRS", "_LMFILES_", "_ModuleTable*",
	"__Init_Default_Modules", "__LMOD_*", "__MODULES_*",
}

// noUserPackages keep interpreters from packages in the user's home. docs/run.md has the languages
// without such a variable.
var noUserPackages = [...]string{"PYTHONNOUSERSITE=1", "R_LIBS_USER=NULL"}

// PassesVariable reports whether a variable of the caller reaches the program. clean is
// [Options.CleanEnv], and overHost is set for a run with [Options.Only]. It does not allocate, because
// cmd/start/bare calls it.
func PassesVariable(name string, clean, overHost bool) bool {
	return (!clean || staysClean(name)) && !isHostSoftware(name, overHost)
}

// isHostSoftware reports whether a run drops a variable of the caller, because the tables have it.
func isHostSoftware(name string, overHost bool) bool {
	return matchesEntry(packageVariables[:], name) || (!overHost && matchesEntry(fileVariables[:], name))
}

// matchesEntry reports whether a name matches an entry of a sorted table.
func matchesEntry(table []string, name string) bool {
	low, high := 0, len(table)
	for low < high {
		if mid := (low + high) / 2; table[mid] <= name {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low == 0 { // all entries are greater
		return false
	}
	entry := table[low-1]
	n := len(entry) - 1
	return entry == name || (entry[n] == '*' && len(name) > n && name[:n] == entry[:n])
}
