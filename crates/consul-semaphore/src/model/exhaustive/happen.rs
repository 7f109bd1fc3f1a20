//! What a state becomes when something happens in it.

use std::sync::Arc;

use super::{
    super::{operator::Operator, requests::Deletion},
    WaitStyle,
    action::{Action, Delivery, Seen},
    state::{LONG, State},
};
use crate::{Plan, Uid};
use consul_client::SessionId;

impl State {
    pub(super) fn happen(&mut self, action: Action) {
        match action {
            Action::Decide(number, seen) => {
                self.faults -= u8::from(seen != Seen::All);
                self.decide(number, seen);
            }
            Action::Step(number, delivery) => {
                self.faults -= u8::from(delivery != Delivery::Good);
                self.step(number, delivery);
            }
            Action::Crash(number) => {
                self.faults -= 1;
                let flaw = self.processes[number].operator.flaw();
                let process = Arc::make_mut(&mut self.processes[number]);
                process.operator = Operator::timeless(flaw);
                process.operator.see_workloads(&self.sites[process.site]);
            }
            Action::Land(position) => {
                let (site, step) = self.landing.remove(position);
                self.at(site, |outside| step.land(outside));
            }
            Action::Wait => self.seconds += LONG,
            Action::Control(..)
            | Action::EndPod(..)
            | Action::Suspend(..)
            | Action::Delete(..)
            | Action::Fail(..) => self.happen_to_workload(action),
            _ => self.happen_in_consul(action),
        }
    }

    fn happen_to_workload(&mut self, action: Action) {
        let (Action::Control(site, workload)
        | Action::EndPod(site, workload)
        | Action::Suspend(site, workload)
        | Action::Delete(site, workload)
        | Action::Fail(site, workload)) = action
        else {
            return;
        };
        let whim = !matches!(action, Action::Control(..) | Action::EndPod(..));
        self.user_changes -= u8::from(whim);
        self.by_others(site, |outside| {
            let workloads = &mut outside.workloads;
            let uid = match action {
                Action::EndPod(..) => workloads.pods()[workload].workload.clone(),
                _ => workloads
                    .objects()
                    .nth(workload)
                    .expect("it is there")
                    .uid
                    .clone(),
            };
            match action {
                Action::Control(..) => workloads.control_one(&uid),
                Action::EndPod(..) => workloads.end_pod(&uid),
                Action::Suspend(..) => workloads.edit(&uid, |object| {
                    let had_slot = object.granted.is_some() && !object.reported.is_empty();
                    object.stopped_by_user |= had_slot;
                    object.suspend = true;
                }),
                Action::Delete(..) => workloads.delete(&uid, Deletion::Orphan),
                _ => workloads.fail(&uid),
            }
        });
    }

    fn happen_in_consul(&mut self, action: Action) {
        let prefix = self.sites[0].settings.prefix.clone();
        let sight = self.sites[0].sight();
        let contenders: Vec<SessionId> = sight.contenders.into_keys().collect();
        match action {
            Action::Arrive => {
                self.arrivals -= u8::from(self.client.session().is_none());
                self.by_client(|client, outside| client.arrive(&mut outside.consul, &prefix));
            }
            Action::Look => {
                self.by_client(|client, outside| client.look(&outside.consul, &prefix));
            }
            Action::Claim => {
                let looks = self.setup.manner != WaitStyle::Slow;
                self.by_client(|client, outside| {
                    if looks {
                        client.look(&outside.consul, &prefix);
                    }
                    client.claim(&mut outside.consul, &prefix);
                });
            }
            Action::Leave => {
                self.by_client(|client, outside| client.leave(&mut outside.consul, &prefix));
            }
            Action::Die => {
                self.by_client(|client, outside| client.die(&mut outside.consul));
            }
            Action::Expire(contender) => {
                self.faults -= 1;
                let session = contenders[contender].clone();
                if self.client.session() == Some(&session) {
                    return self.happen_in_consul(Action::Die);
                }
                self.by_others(0, |outside| outside.consul.destroy(&session));
            }
            Action::DeleteContender(contender) => {
                self.faults -= 1;
                let key = prefix.contender_key(&contenders[contender]);
                self.by_others(0, |outside| outside.consul.delete(&key));
            }
            Action::TakeOut(holder) => {
                self.faults -= 1;
                self.by_others(0, |outside| {
                    let body = outside.sight().body.expect("it has holders");
                    let holder = &body.holders[holder];
                    outside.edit_lock(|lock| {
                        let holders = lock["Holders"].as_object_mut();
                        holders.expect("a map").remove(holder.as_str());
                    });
                });
            }
            _ => {}
        }
    }

    /// An operator begins a pass.
    pub(super) fn decide(&mut self, number: usize, seen: Seen) -> Plan {
        let mut process = (*self.processes[number]).clone();
        let site = process.site;
        let operator = &mut process.operator;
        let outside = self.now(site);
        if seen != Seen::OldJobs {
            operator.see_workloads(&outside);
        }
        if seen != Seen::OldReading {
            operator.see_consul(&outside);
        }
        let held = outside.sight().workloads();
        let objects = outside.workloads.objects();
        let lost = objects.filter(|object| {
            object.runs() && object.granted.is_some() && !held.contains(&object.uid)
        });
        let had_session = |uid: &Uid| operator.has_session(uid);
        let known = lost.map(|object| (object.uid.clone(), had_session(&object.uid)));
        let lost = known.collect();
        let plan = operator.decide(&outside);
        process.lost = lost;
        process.clean = seen == Seen::All;
        process.read = outside.now();
        self.processes[number] = Arc::new(process);
        self.check_gap(number);
        plan
    }

    pub(super) fn step(&mut self, number: usize, delivery: Delivery) {
        let mut process = (*self.processes[number]).clone();
        let site = process.site;
        if matches!(delivery, Delivery::Late | Delivery::Twice) {
            let step = process.operator.next_step().cloned();
            self.landing.extend(step.map(|step| (site, step)));
        }
        let lost = delivery.lost();
        process.clean &= self.at(site, |outside| process.operator.act(outside, lost));
        self.processes[number] = Arc::new(process);
        self.check_gap(number);
    }
}
