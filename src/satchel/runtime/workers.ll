; One run: publish the epoch, then work through the phases like everyone else.
define void @run(ptr %c) nounwind {
entry:
  %n_patches.p = field %c, Control.n_patches
  %n_patches = load i64, ptr %n_patches.p
  %patches.p = field %c, Control.patches
  %patches = load ptr, ptr %patches.p
  %scalars.p = field %c, Control.scalars
  %scalars = load ptr, ptr %scalars.p
  %epoch.p = field %c, Control.epoch
  %before = load i32, ptr %epoch.p
  %after = add i32 %before, 1
  %wraps = icmp eq i32 %after, 0            ; 0 is the epoch of fresh tables
  %epoch = select i1 %wraps, i32 1, i32 %after
  %epoch.wide = zext i32 %epoch to i64
  %tag = shl i64 %epoch.wide, 32
  br label %patch
patch:
  %i = phi i64 [0, %entry], [%i.next, %patch.one]
  %more = icmp ult i64 %i, %n_patches
  br i1 %more, label %patch.one, label %count
patch.one:
  %patch.p = getelementptr %Patch, ptr %patches, i64 %i
  %slot = load ptr, ptr %patch.p
  %which.p = field %patch.p, Patch.scalar
  %which = load i64, ptr %which.p
  %value.p = getelementptr i64, ptr %scalars, i64 %which
  %value = load i64, ptr %value.p
  store i64 %value, ptr %slot
  %i.next = add i64 %i, 1
  br label %patch
count:
  %n_phases.p = field %c, Control.n_phases
  %n_phases = load i64, ptr %n_phases.p
  %phases.p = field %c, Control.phases
  %phases = load ptr, ptr %phases.p
  %phases.end = getelementptr %Phase, ptr %phases, i64 %n_phases
  br label %phase
phase:
  %p = phi ptr [%phases, %count], [%p.next, %phase.end]
  %more.p = icmp ult ptr %p, %phases.end
  br i1 %more.p, label %phase.one, label %publish
phase.one:
  %first.p = field %p, Phase.first
  %first = load ptr, ptr %first.p
  %last.p = field %p, Phase.last
  %last = load ptr, ptr %last.p
  br label %step
step:
  %s = phi ptr [%first, %phase.one], [%s.next, %step.one]
  %sum = phi i64 [0, %phase.one], [%sum.next, %step.one]
  %more.s = icmp ult ptr %s, %last
  br i1 %more.s, label %step.one, label %phase.end
step.one:
  %factor.p = field %s, Step.factor
  %factor = load i64, ptr %factor.p
  %by.p = field %s, Step.scalar
  %by = load i64, ptr %by.p
  %times.p = getelementptr i64, ptr %scalars, i64 %by
  %times = load i64, ptr %times.p
  %tiles = mul i64 %factor, %times
  %total = or i64 %tag, %tiles
  %total.p = field %s, Step.total
  store atomic i64 %total, ptr %total.p release, align 8
  %sum.next = add i64 %sum, %tiles
  %s.next = getelementptr %Step, ptr %s, i64 1
  br label %step
phase.end:
  %target.p = field %p, Phase.target
  %target = load i64, ptr %target.p
  %target.next = add i64 %target, %sum
  store atomic i64 %target.next, ptr %target.p release, align 8
  %p.next = getelementptr %Phase, ptr %p, i64 1
  br label %phase
publish:
  call void @publish(ptr %c, i32 %epoch)
  call void @work(ptr %c, i32 %epoch, i64 0)
  ret void
}

; Make the epoch known; wake those who sleep.
define internal void @publish(ptr %c, i32 %epoch) nounwind {
  %epoch.p = field %c, Control.epoch
  store atomic i32 %epoch, ptr %epoch.p seq_cst, align 4
  %sleepers.p = field %c, Control.sleepers
  %sleepers = load atomic i32, ptr %sleepers.p seq_cst, align 4
  %any = icmp ne i32 %sleepers, 0
  br i1 %any, label %wake, label %end
wake:
  call void @wake(ptr %c, ptr %epoch.p)
  ret void
end:
  ret void
}

; Send all workers home.
define void @stop(ptr %c) nounwind {
  %stop.p = field %c, Control.stop
  store atomic i64 1, ptr %stop.p seq_cst, align 8
  %epoch.p = field %c, Control.epoch
  %epoch = load i32, ptr %epoch.p
  %next = add i32 %epoch, 1
  call void @publish(ptr %c, i32 %next)
  ret void
}

; The life of worker number `worker`, who has seen all epochs up to `seen`.
define void @attend(ptr %c, i32 %seen, i64 %worker) nounwind {
entry:
  br label %idle
idle:
  %last = phi i32 [%seen, %entry], [%epoch, %turn]
  %epoch = call i32 @next_epoch(ptr %c, i32 %last)
  %stop.p = field %c, Control.stop
  %stop = load atomic i64, ptr %stop.p seq_cst, align 8
  %stops = icmp ne i64 %stop, 0
  br i1 %stops, label %end, label %turn
turn:
  call void @work(ptr %c, i32 %epoch, i64 %worker)
  br label %idle
end:
  ret void
}

; Wait until the epoch is another than `seen`: spin for a while, then sleep.
define internal i32 @next_epoch(ptr %c, i32 %seen) nounwind {
entry:
  %epoch.p = field %c, Control.epoch
  %limit.p = field %c, Control.idle_spin
  %limit = load i64, ptr %limit.p
  %start = call i64 @now()
  br label %spin
spin:
  %epoch = load atomic i32, ptr %epoch.p acquire, align 4
  %new = icmp ne i32 %epoch, %seen
  br i1 %new, label %end, label %pause
pause:
  call void @relax()
  %time = call i64 @now()
  %spent = sub i64 %time, %start
  %on = icmp ult i64 %spent, %limit
  br i1 %on, label %spin, label %tire
tire:
  %sleepers.p = field %c, Control.sleepers
  %0 = atomicrmw add ptr %sleepers.p, i32 1 seq_cst
  br label %look
look:
  %epoch.2 = load atomic i32, ptr %epoch.p seq_cst, align 4
  %new.2 = icmp ne i32 %epoch.2, %seen
  br i1 %new.2, label %rise, label %sleep
sleep:
  call void @sleep(ptr %c, ptr %epoch.p, i32 %seen)
  br label %look
rise:
  %1 = atomicrmw sub ptr %sleepers.p, i32 1 seq_cst
  br label %end
end:
  %result = phi i32 [%epoch, %spin], [%epoch.2, %rise]
  ret i32 %result
}

; Walk the phases of one epoch, claiming tiles, until it is over.
define internal void @work(ptr %c, i32 %epoch, i64 %worker) nounwind {
entry:
  %n_phases.p = field %c, Control.n_phases
  %n_phases = load i64, ptr %n_phases.p
  %phases.p = field %c, Control.phases
  %phases = load ptr, ptr %phases.p
  %phases.end = getelementptr %Phase, ptr %phases, i64 %n_phases
  %shares.p = field %c, Control.shares
  %shares = load i64, ptr %shares.p
  %profile.p = field %c, Control.profile
  %profile = load ptr, ptr %profile.p
  %is_timed = icmp ne ptr %profile, null
  %epoch.wide = zext i32 %epoch to i64
  %tag = shl i64 %epoch.wide, 32
  br label %phase
phase:
  %p = phi ptr [%phases, %entry], [%p.next, %next]
  %more.p = icmp ult ptr %p, %phases.end
  br i1 %more.p, label %begin, label %end
begin:
  %is_over = call i1 @is_over(ptr %p)
  br i1 %is_over, label %next, label %steps
steps:
  %first.p = field %p, Phase.first
  %first = load ptr, ptr %first.p
  %last.p = field %p, Phase.last
  %last = load ptr, ptr %last.p
  br label %step
step:
  %s = phi ptr [%first, %steps], [%s.next, %exhausted]
  %mine = phi i64 [0, %steps], [%mine.now, %exhausted]
  %more.s = icmp ult ptr %s, %last
  br i1 %more.s, label %open, label %report
open:
  %claim.p = field %s, Step.claim
  %total.p = field %s, Step.total
  %kernel.p = field %s, Step.kernel
  %kernel = load ptr, ptr %kernel.p
  %args.p = field %s, Step.args
  %args = load ptr, ptr %args.p
  br label %claim
claim:
  %mine.now = phi i64 [%mine, %open], [%mine.now, %take], [%mine.more, %count]
  %was = load atomic i64, ptr %claim.p acquire, align 8
  %total = load atomic i64, ptr %total.p acquire, align 8
  %total.epoch = lshr i64 %total, 32
  %is_ours = icmp eq i64 %total.epoch, %epoch.wide
  br i1 %is_ours, label %share, label %end      ; this epoch is over, and we hold no tile
share:
  %tiles = and i64 %total, 4294967295
  %was.epoch = lshr i64 %was, 32
  %was.left = and i64 %was, 4294967295
  %is_begun = icmp eq i64 %was.epoch, %epoch.wide
  %left = select i1 %is_begun, i64 %was.left, i64 %tiles
  %none = icmp eq i64 %left, 0
  br i1 %none, label %exhausted, label %take
take:
  %part = udiv i64 %left, %shares
  %n = call i64 @llvm.umax.i64(i64 %part, i64 1)
  %rest = sub i64 %left, %n
  %will = or i64 %tag, %rest
  %swap = cmpxchg ptr %claim.p, i64 %was, i64 %will acq_rel monotonic
  %won = extractvalue {i64, i1} %swap, 1
  br i1 %won, label %compute, label %claim
compute:
  %lo = sub i64 %tiles, %left
  %hi = add i64 %lo, %n
  br i1 %is_timed, label %timed, label %plain
plain:
  call void %kernel(ptr %args, i64 %lo, i64 %hi)
  br label %count
timed:
  %span = call ptr @span(ptr %c, ptr %s, i64 %worker)
  call void @timed(ptr %span, ptr %kernel, ptr %args, i64 %lo, i64 %hi)
  br label %count
count:
  %mine.more = add i64 %mine.now, %n
  br label %claim
exhausted:
  %s.next = getelementptr %Step, ptr %s, i64 1
  br label %step
report:
  %idle = icmp eq i64 %mine, 0
  br i1 %idle, label %wait, label %tell
tell:
  call void @report(ptr %c, ptr %p, i64 %mine)
  br label %wait
wait:
  %goes_on = call i1 @wait(ptr %c, ptr %p, i32 %epoch)
  br i1 %goes_on, label %next, label %end
next:
  %p.next = getelementptr %Phase, ptr %p, i64 1
  br label %phase
end:
  ret void
}

; Whether all tiles of a phase are done; if so, all they wrote can be seen.
define internal i1 @is_over(ptr %p) nounwind alwaysinline {
  %done = load atomic i64, ptr %p seq_cst, align 8
  %target.p = field %p, Phase.target
  %target = load atomic i64, ptr %target.p acquire, align 8
  %open = sub i64 %target, %done
  %is_over = icmp sle i64 %open, 0
  ret i1 %is_over
}

; Count `n` more tiles of a phase as done; with its last ones, wake those who sleep on it.
define internal void @report(ptr %c, ptr %p, i64 %n) nounwind alwaysinline {
  %before = atomicrmw add ptr %p, i64 %n seq_cst
  %is_over = call i1 @is_over(ptr %p)
  br i1 %is_over, label %last, label %end
last:
  %sleepers.p = field %p, Phase.sleepers
  %sleepers = load atomic i32, ptr %sleepers.p seq_cst, align 4
  %any = icmp ne i32 %sleepers, 0
  br i1 %any, label %wake, label %end
wake:
  call void @wake(ptr %c, ptr %p)
  br label %end
end:
  ret void
}

; Wait until a phase is over: spin for a while, then sleep. False when the epoch itself is over.
define internal i1 @wait(ptr %c, ptr %p, i32 %epoch) nounwind {
entry:
  %epoch.p = field %c, Control.epoch
  %is_over.0 = call i1 @is_over(ptr %p)
  br i1 %is_over.0, label %over, label %start
start:
  %limit.p = field %c, Control.wait_spin
  %limit = load i64, ptr %limit.p
  %start.time = call i64 @now()
  br label %spin
spin:
  %is_over = call i1 @is_over(ptr %p)
  br i1 %is_over, label %over, label %pause
pause:
  %now.epoch = load atomic i32, ptr %epoch.p acquire, align 4
  %is_ours = icmp eq i32 %now.epoch, %epoch
  br i1 %is_ours, label %stay, label %leave
stay:
  call void @relax()
  %time = call i64 @now()
  %spent = sub i64 %time, %start.time
  %on = icmp ult i64 %spent, %limit
  br i1 %on, label %spin, label %tire
tire:
  %sleepers.p = field %p, Phase.sleepers
  %0 = atomicrmw add ptr %sleepers.p, i32 1 seq_cst
  br label %look
look:
  %done = load atomic i32, ptr %p seq_cst, align 8
  %is_over.2 = call i1 @is_over(ptr %p)
  br i1 %is_over.2, label %rise, label %check
check:
  %now.epoch.2 = load atomic i32, ptr %epoch.p acquire, align 4
  %is_ours.2 = icmp eq i32 %now.epoch.2, %epoch
  br i1 %is_ours.2, label %sleep, label %rise
sleep:
  call void @sleep(ptr %c, ptr %p, i32 %done)
  br label %look
rise:
  %1 = atomicrmw sub ptr %sleepers.p, i32 1 seq_cst
  br label %spin
over:
  ret i1 true
leave:
  ret i1 false
}

; Where this worker's times for a step are kept.
define internal ptr @span(ptr %c, ptr %s, i64 %worker) nounwind {
  %steps.p = field %c, Control.steps
  %steps = load ptr, ptr %steps.p
  %steps.int = ptrtoint ptr %steps to i64
  %s.int = ptrtoint ptr %s to i64
  %offset = sub i64 %s.int, %steps.int
  %index = udiv exact i64 %offset, {step_bytes}
  %n_steps.p = field %c, Control.n_steps
  %n_steps = load i64, ptr %n_steps.p
  %row = mul i64 %worker, %n_steps
  %at = add i64 %row, %index
  %profile.p = field %c, Control.profile
  %profile = load ptr, ptr %profile.p
  %span = getelementptr %Span, ptr %profile, i64 %at
  ret ptr %span
}

; Call a kernel and note when it began first and ended last, and its tiles.
define internal void @timed(ptr %span, ptr %kernel, ptr %args, i64 %lo, i64 %hi) nounwind {
  %begin = call i64 @now()
  call void %kernel(ptr %args, i64 %lo, i64 %hi)
  %end = call i64 @now()
  %first = load i64, ptr %span
  %is_first = icmp eq i64 %first, 0
  %begin.first = select i1 %is_first, i64 %begin, i64 %first
  store i64 %begin.first, ptr %span
  %end.p = field %span, Span.end
  store i64 %end, ptr %end.p
  %tiles.p = field %span, Span.tiles
  %tiles = load i64, ptr %tiles.p
  %n = sub i64 %hi, %lo
  %tiles.more = add i64 %tiles, %n
  store i64 %tiles.more, ptr %tiles.p
  ret void
}

; A clock that runs evenly, in ticks of its own.
define i64 @now() nounwind {
  %ticks = {clock}
  ret i64 %ticks
}

define internal void @relax() nounwind alwaysinline {
  {pause}
  ret void
}
declare i64 @llvm.umax.i64(i64, i64)
