package job

// Rules describe what schedulers leave to each site. A job carries the rules of its site.
type Rules struct {
	OneHost   string   `json:"pe_one_host,omitempty" toml:"pe_one_host"` // parallel environment for slots on one host; default smp
	ManyHosts string   `json:"pe_many,omitempty" toml:"pe_many"`         // parallel environment for slots on any hosts; default mpi
	Memory    []string `json:"memory,omitempty" toml:"memory"`           // resources for --mem; default mem_free
	MemoryPer string   `json:"memory_per,omitempty" toml:"memory_per"`   // unit of the amount: slot, job or host
	GPU       string   `json:"gpu,omitempty" toml:"gpu"`                 // resource for --gpus; "": the usual one
	GPUPer    string   `json:"gpu_per,omitempty" toml:"gpu_per"`         // unit of the amount: slot or job
}
