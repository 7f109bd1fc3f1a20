//go:build tests

// What the tests of Consul's Go client need beside what the client does: named here, so that
// `go mod tidy` keeps it.
package main

import (
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/hashicorp/consul/sdk/testutil"
	_ "github.com/stretchr/testify/require"
)
