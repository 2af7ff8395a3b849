// What was in use at a moment, a kept row of the timeline, and what came and went between two of them.

// Blocks of groups, by position: those that are known one by one, and by how much the small ones of a group changed.
class Moments {
  constructor(blocks) {
    Object.assign(this, blocks);
  }

  // Bytes and blocks of the small blocks of each group at a moment.
  smallSums(row) {
    const bytes = new Float64Array(this.groups.length), count = new Float64Array(this.groups.length), { changes } = this;
    for (let i = 0, end = upperBound(changes.at, row); i < end; i++) {
      bytes[changes.group[i]] += changes.bytes[i];
      count[changes.group[i]] += changes.count[i];
    }
    return { bytes, count };
  }

  // Rows of a moment, largest first.
  at(row) {
    const { bytes, count } = this.smallSums(row), { first, last, group } = this, smallBytes = bytes.reduce((sum, value) => sum + value, 0);
    // Blocks come by their first position.
    for (let i = 0, end = upperBound(first, row); i < end; i++) {
      if (last[i] <= row) continue;
      bytes[group[i]] += this.bytes[i];
      count[group[i]] += 1;
    }
    const alive = this.groups.filter((one) => bytes[one.group] !== 0 || count[one.group] !== 0);
    return { rows: alive.map((one) => ({ ...one, bytes: bytes[one.group], count: count[one.group] })).sort((a, b) => b.bytes - a.bytes), smallBytes };
  }

  // Rows that came from one moment to a later one and stayed, and rows that went; of small blocks only the difference.
  between(earlier, later) {
    const length = this.groups.length, came = new Float64Array(length), went = new Float64Array(length), blocksCame = new Float64Array(length), blocksWent = new Float64Array(length);
    for (let i = 0, end = upperBound(this.first, later); i < end; i++) {
      const was = this.first[i] <= earlier && this.last[i] > earlier, is = this.last[i] > later;
      if (was === is) continue;
      (is ? came : went)[this.group[i]] += this.bytes[i];
      (is ? blocksCame : blocksWent)[this.group[i]] += 1;
    }
    const before = this.smallSums(earlier), after = this.smallSums(later);
    for (let i = 0; i < length; i++) {
      const grown = after.bytes[i] - before.bytes[i], more = after.count[i] - before.count[i];
      (grown > 0 ? came : went)[i] += Math.abs(grown);
      (more > 0 ? blocksCame : blocksWent)[i] += Math.abs(more);
    }
    const rows = this.groups.filter(({ group }) => came[group] || went[group])
      .map((group) => ({ ...group, came: came[group.group], went: went[group.group], change: came[group.group] - went[group.group], count: blocksCame[group.group] + blocksWent[group.group] }));
    return rows.sort((a, b) => b.came + b.went - (a.came + a.went));
  }

  // Bytes of some groups at every kept row. `has` has a 1 for each of them.
  course(has, length) {
    const level = new Float64Array(length + 1);
    for (let i = 0; i < this.first.length; i++) {
      if (has[this.group[i]]) {
        level[this.first[i]] += this.bytes[i];
        level[this.last[i]] -= this.bytes[i];
      }
    }
    const { changes } = this;
    for (let i = 0; i < changes.at.length; i++) if (has[changes.group[i]]) level[changes.at[i]] += changes.bytes[i];
    for (let i = 1; i <= length; i++) level[i] += level[i - 1];
    return level.subarray(0, length);
  }
}
