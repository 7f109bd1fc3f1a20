//! A fair schedule: what happens when nothing goes wrong any more.

use std::sync::Arc;

use super::{
    super::rest::check_at_rest,
    WaitStyle,
    action::{Action, Delivery, Seen},
    state::{Process, State},
};
use crate::Plan;

impl State {
    /// The next step of a fair schedule, in which nothing goes wrong any more: pods that are stopping end, calls are
    /// answered, and every operator passes, and waits only if there is nothing to do before. Running pods keep
    /// running. `None` if nothing is left to do.
    pub(super) fn next(&self) -> Option<Self> {
        let mut moved = self.clone();
        moved.seconds += 1;
        if let Some(next) = moved.next_of_workloads() {
            return Some(next);
        }
        let busy = |process: &Arc<Process>| process.operator.is_busy();
        if let Some(number) = self.processes.iter().position(busy) {
            moved.carry_out(|state| state.step(number, Delivery::Good));
            return Some(moved);
        }
        let (mut waits, mut plans) = (false, Vec::new());
        for number in 0..self.processes.len() {
            let mut decided = None;
            moved.carry_out(|state| decided = Some(state.decide(number, Seen::All)));
            let Some(plan) = decided else {
                return Some(moved);
            };
            if moved.processes[number].operator.is_busy() || plan.reread {
                return Some(moved);
            }
            waits |= plan.wake.is_some() || plan.deadline.is_some();
            plans.push(plan);
        }
        if moved.digest() != self.digest() {
            // Nothing was to be done, but the operator noted something.
            return Some(moved);
        }
        if self.client.session().is_some() && self.setup.manner != WaitStyle::Silent {
            // If its contender was deleted, it makes one first.
            let mut tries = [Action::Arrive, Action::Claim].into_iter();
            if let Some(next) = tries.find_map(|action| self.after(action)) {
                return Some(next);
            }
        }
        match self.after(Action::Wait) {
            Some(next) if waits => return Some(next),
            _ => moved.carry_out(|state| state.check_rest(&plans)),
        }
        moved.broken.is_some().then_some(moved)
    }

    fn next_of_workloads(&self) -> Option<Self> {
        for (number, site) in self.sites.iter().enumerate() {
            let there = |uid| site.workloads.get(uid).is_some();
            let mut pods = site.workloads.pods().iter();
            if let Some(pod) = pods.position(|pod| pod.terminating || !there(&pod.workload)) {
                return self.after(Action::EndPod(number, pod));
            }
            let mut objects = site.workloads.objects();
            if let Some(workload) = objects.position(|object| site.workloads.awaits_control(object))
            {
                return self.after(Action::Control(number, workload));
            }
        }
        None
    }

    /// What must be true when nothing is left to do: no slot is lost, and none is free while a workload waits.
    fn check_rest(&self, plans: &[Plan]) {
        for (process, plan) in self.processes.iter().zip(plans) {
            check_at_rest(&self.now(process.site), plan);
        }
        let sight = self.sites[0].sight();
        let Some(session) = self.client.session() else {
            return;
        };
        let body = sight.body.as_ref();
        let free = body.is_none_or(|body| body.holders.len() < body.limit());
        let waits =
            sight.contenders.contains_key(session) && !body.is_some_and(|body| body.holds(session));
        assert!(
            !(free && waits) || self.setup.manner == WaitStyle::Silent,
            "a slot is idle while another program waits"
        );
    }
}
