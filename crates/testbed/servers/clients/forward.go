package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
)

// forward stands in for a Consul agent that is to be started: it passes on what comes to the HTTP port
// of the agent's configuration to a Consul that is there already, until TERM or INT.
//
// The tests of the Go client start an agent each. So that an operator can be at work when such a test
// begins, its Consul was started before.
func forward(to, config string) error {
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var agent struct {
		Ports struct{ HTTP int }
	}
	if err := json.Unmarshal(text, &agent); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", agent.Ports.HTTP))
	if err != nil {
		return err
	}
	go accept(listener, to)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
	return nil
}

func accept(listener net.Listener, to string) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go pass(client, to)
	}
}

func pass(client net.Conn, to string) {
	defer client.Close()
	consul, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer consul.Close()
	go func() {
		io.Copy(consul, client)
		consul.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(client, consul)
}
