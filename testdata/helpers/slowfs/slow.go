package main

import "github.com/hanwen/go-fuse/v2/fuse"

// slow passes each operation of the FUSE protocol on after the meter has delayed it.
type slow struct {
	fuse.RawFileSystem
	*meter
}

// after counts an operation, and returns the file system when the operation may continue.
func (s slow) after(kind string) fuse.RawFileSystem {
	s.operation(kind)
	return s.RawFileSystem
}

// Flush is not supported, so the kernel sends it only once: written data is in the directory
// already, as after the writes of a network file system before close(2) returns.
func (s slow) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

// Open keeps the cached content of a file, which the kernel drops when the file's modification
// time has changed.
func (s slow) Open(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	status := s.after("open").Open(c, in, out)
	out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
	return status
}

func (s slow) Lookup(c <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return s.after("lookup").Lookup(c, h, name, out)
}

func (s slow) GetAttr(c <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return s.after("getattr").GetAttr(c, in, out)
}

func (s slow) SetAttr(c <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return s.after("setattr").SetAttr(c, in, out)
}

func (s slow) Mknod(c <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.after("mknod").Mknod(c, in, name, out)
}

func (s slow) Mkdir(c <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.after("mkdir").Mkdir(c, in, name, out)
}

func (s slow) Unlink(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return s.after("unlink").Unlink(c, h, name)
}

func (s slow) Rmdir(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return s.after("rmdir").Rmdir(c, h, name)
}

func (s slow) Rename(c <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	return s.after("rename").Rename(c, in, from, to)
}

func (s slow) Link(c <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.after("link").Link(c, in, name, out)
}

func (s slow) Symlink(c <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return s.after("symlink").Symlink(c, h, target, name, out)
}

func (s slow) Readlink(c <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	return s.after("readlink").Readlink(c, h)
}

// GetXAttr answers at once that no file has capabilities, which the kernel asks before each write.
// Clients of network file systems answer this themselves.
func (s slow) GetXAttr(c <-chan struct{}, h *fuse.InHeader, name string, to []byte) (uint32, fuse.Status) {
	if name == "security.capability" {
		return 0, fuse.ENOATTR
	}
	return s.after("getxattr").GetXAttr(c, h, name, to)
}

func (s slow) ListXAttr(c <-chan struct{}, h *fuse.InHeader, to []byte) (uint32, fuse.Status) {
	return s.after("listxattr").ListXAttr(c, h, to)
}

func (s slow) SetXAttr(c <-chan struct{}, in *fuse.SetXAttrIn, name string, data []byte) fuse.Status {
	return s.after("setxattr").SetXAttr(c, in, name, data)
}

func (s slow) RemoveXAttr(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return s.after("removexattr").RemoveXAttr(c, h, name)
}

func (s slow) Create(c <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return s.after("create").Create(c, in, name, out)
}

func (s slow) Read(c <-chan struct{}, in *fuse.ReadIn, to []byte) (fuse.ReadResult, fuse.Status) {
	return s.after("read").Read(c, in, to)
}

func (s slow) Write(c <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return s.after("write").Write(c, in, data)
}

func (s slow) CopyFileRange(c <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	return s.after("copyfilerange").CopyFileRange(c, in)
}

func (s slow) Fsync(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return s.after("fsync").Fsync(c, in)
}

func (s slow) Fallocate(c <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return s.after("fallocate").Fallocate(c, in)
}

func (s slow) OpenDir(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return s.after("opendir").OpenDir(c, in, out)
}

func (s slow) ReadDir(c <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return s.after("readdir").ReadDir(c, in, out)
}

func (s slow) ReadDirPlus(c <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return s.after("readdirplus").ReadDirPlus(c, in, out)
}

func (s slow) StatFs(c <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	return s.after("statfs").StatFs(c, h, out)
}
