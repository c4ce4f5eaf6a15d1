# What every provider takes, gives and refuses.

variables {
  cluster              = "demo"
  nodes                = 3
  image                = "x"
  ssh_public_key       = "ssh-ed25519 AAAA"
  ssh_private_key_file = "/nowhere"
  ssh_host_keys        = {}
}

run "nodes_come_in_order_the_head_first" {
  command = plan
  assert {
    condition     = output.nodes[*].name == ["node0", "node1", "node2"]
    error_message = "The order is lost."
  }
  assert {
    condition     = output.nodes[*].role == ["head", "worker", "worker"]
    error_message = "The head is not the first."
  }
}

run "a_node_has_the_attributes_of_the_contract_and_no_others" {
  command = plan
  variables {
    slots   = 4
    gpus    = 2
    options = { port_a_word = true }
  }
  assert {
    condition = jsonencode(output.nodes[1]) == jsonencode({
      id              = "101"
      name            = "node1"
      role            = "worker"
      kind            = "machine"
      address         = "203.0.113.1"
      private_address = "10.0.0.1"
      ssh_user        = "hvdctl"
      ssh_port        = 22
      ssh_proxy       = null
      slots           = 4
      gpus            = 2
      host_key        = null
      user_key        = null
    })
    error_message = "A node is not as the contract says."
  }
}

run "a_jump_host_is_given_on" {
  command = plan
  variables {
    options = { with_proxy = true }
  }
  assert {
    condition     = output.nodes[0].ssh_proxy == "gate.example.org"
    error_message = "The jump host is lost."
  }
}

run "defaults_are_those_of_a_plain_cluster" {
  command = plan
  assert {
    condition     = var.slots == 1 && var.gpus == 0 && var.rate == null && var.share == "auto" && length(var.labels) == 0
    error_message = "A default has changed."
  }
}

run "too_few_nodes_are_refused" {
  command = plan
  variables {
    options = { missing = 1 }
  }
  expect_failures = [output.nodes]
}

run "nodes_without_a_head_are_refused" {
  command = plan
  variables {
    options = { first_role = "worker" }
  }
  expect_failures = [output.nodes]
}

run "a_bad_name_is_refused" {
  command = plan
  variables {
    cluster = "Big Name"
  }
  expect_failures = [var.cluster]
}

run "a_name_that_ends_in_a_hyphen_is_refused" {
  command = plan
  variables {
    cluster = "demo-"
  }
  expect_failures = [var.cluster]
}

run "no_nodes_are_refused" {
  command = plan
  variables {
    nodes = 0
  }
  expect_failures = [var.nodes]
}

run "half_a_slot_is_refused" {
  command = plan
  variables {
    slots = 1.5
  }
  expect_failures = [var.slots]
}

run "less_than_no_gpus_are_refused" {
  command = plan
  variables {
    gpus = -1
  }
  expect_failures = [var.gpus]
}

run "a_rate_of_zero_is_refused" {
  command = plan
  variables {
    rate = 0
  }
  expect_failures = [var.rate]
}

run "a_share_that_is_no_path_is_refused" {
  command = plan
  variables {
    share = "here"
  }
  expect_failures = [var.share]
}
